// Tabs, each with its own address.

import type { ComponentChildren } from "preact";

export interface Tab {
  key: string;
  name: string;
  href: string;
  /** A number or mark beside the name. */
  badge?: ComponentChildren;
}

export function TabBar({ at, tabs, label, replace }: { at: string; tabs: Tab[]; label: string; replace?: boolean }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.key} href={tab.href} data-replace={replace ? "" : undefined} data-tab={tab.key} aria-current={tab.key === at ? "page" : undefined}>
          {tab.name}
          {tab.badge !== undefined && <span class="tab-badge">{tab.badge}</span>}
        </a>
      ))}
    </nav>
  );
}
