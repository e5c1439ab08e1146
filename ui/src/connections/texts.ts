// Texts of connections.

import { texts as shared } from "../texts";

export const texts = {
  ...shared.settings,
  title: "Connections",
  none: "No connection is set. A task reads one with connection(\"name\"); passwords are never shown again.",
  name: "Name",
  type: "Type",
  uri: "As a URI",
  value: "URI",
  uriHint: "postgresql://user:password@host/db",
  scheme: "Scheme",
  keeps: "unchanged if empty",
  note: "Tasks that start from now on get it. Secrets are not shown again.",
  test: "Test",
  testing: "Testing",
  edit: "Edit",
  testRow: (name: string): string => `Test ${name}`,
  editOne: (name: string): string => `Edit connection ${name}`,
  editRow: (name: string): string => `Edit ${name}`,
  ok: (what: string): string => `Works: ${what}`,
  failed: (what: string): string => `Failed: ${what}`,
};
