import { useEffect, useState } from "preact/hooks";

import { send } from "../api";
import { reason } from "../messages";
import { texts } from "../texts";

/** The login, for users without a session or with an expired one. Afterwards they return to their page. */
export function Login({ wasIn }: { wasIn: boolean }) {
  const [wrong, setWrong] = useState("");
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    document.title = `${texts.login.title} · ${texts.product}`;
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
      <form class="login-card" onSubmit={submit}>
        <h1>
          <svg width="32" height="32" viewBox="0 0 32 32" aria-hidden="true">
            <rect width="32" height="32" rx="8" />
            <path d="M7 16h5m8-6h5m-5 12h5M12 16c4 0 4-6 8-6m-8 6c4 0 4 6 8 6" />
          </svg>
          {texts.product}
        </h1>
        {wasIn && (
          <p class="notice" role="alert">
            {texts.login.ended}
          </p>
        )}
        <label>
          <span>{texts.login.name}</span>
          <input name="name" autocomplete="username" autofocus required />
        </label>
        <label>
          <span>{texts.login.password}</span>
          <input name="password" type="password" autocomplete="current-password" required />
        </label>
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
        <button type="submit" class="main" disabled={isBusy}>
          {texts.login.title}
        </button>
        <p class="soft">{texts.login.link}</p>
      </form>
    </main>
  );
}
