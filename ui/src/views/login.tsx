import { useEffect, useState } from "preact/hooks";

import { send } from "../api";
import { reason } from "../dialog";

/** Shown to users without access, or whose access ended; after login they return to their page. */
export function Login({ wasIn }: { wasIn: boolean }) {
  const [wrong, setWrong] = useState("");
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    document.title = "Sign in · aioflow";
  }, []);
  async function submit(event: SubmitEvent): Promise<void> {
    event.preventDefault();
    const given = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    try {
      await send("POST", "/sessions", { name: given.get("name"), password: given.get("password") });
      window.location.reload();
    } catch (error) {
      setWrong(reason(error));
      setBusy(false);
    }
  }
  return (
    <main class="login">
      <h1>aioflow</h1>
      {wasIn && (
        <p class="banner" role="alert">
          Your session has ended. Sign in, and this page is shown again.
        </p>
      )}
      <p>
        Open the link that the daemon printed when it started: it has a token in it, and signs you in. The file{" "}
        <code>token</code> in the home of the daemon has the token alone: put it behind <code>/?token=</code>.
      </p>
      <form onSubmit={submit}>
        <h2>Or sign in</h2>
        <label>
          <span>Name</span>
          <input name="name" autocomplete="username" autofocus required />
        </label>
        <label>
          <span>Password</span>
          <input name="password" type="password" autocomplete="current-password" required />
        </label>
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
        <button type="submit" class="main" disabled={isBusy}>
          Sign in
        </button>
      </form>
    </main>
  );
}
