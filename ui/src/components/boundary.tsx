// An error boundary: a view that throws is replaced by a message, and the rest of the page continues to work.

import { Component, type ComponentChildren } from "preact";

import { texts } from "../texts";

interface Props {
  children: ComponentChildren;
}

interface Caught {
  problem: string | null;
}

export class Boundary extends Component<Props, Caught> {
  static getDerivedStateFromError(error: unknown): Caught {
    return { problem: String(error) };
  }

  override state: Caught = { problem: null };

  override componentDidCatch(error: unknown): void {
    console.error(error);
  }

  render({ children }: Props, { problem }: Caught) {
    if (problem === null) return <>{children}</>;
    return (
      <div class="trouble" role="alert">
        <h1>{texts.trouble.view}</h1>
        <p class="soft">{texts.trouble.viewText}</p>
        <details>
          <summary class="soft">{texts.trouble.details}</summary>
          <code class="break">{problem}</code>
        </details>
        <button type="button" onClick={() => location.reload()}>
          {texts.shell.reload}
        </button>
      </div>
    );
  }
}
