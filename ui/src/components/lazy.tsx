// A view whose script is loaded on first use.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import { Skeleton } from "./skeleton";

export function lazy<Props extends object>(load: () => Promise<{ default: ComponentType<Props> }>): (props: Props) => preact.JSX.Element {
  let loaded: ComponentType<Props> | undefined;
  return function Lazy(props: Props) {
    const [, setReady] = useState(loaded !== undefined);
    const [problem, setProblem] = useState("");
    useEffect(() => {
      if (loaded) return;
      load().then(
        (found) => {
          loaded = found.default;
          setReady(true);
        },
        (error) => setProblem(String(error)),
      );
    }, []);
    if (problem) return <p class="wrong">{problem}</p>;
    const Shown = loaded;
    return Shown ? <Shown {...props} /> : <Skeleton />;
  };
}
