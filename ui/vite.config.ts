import { appendFileSync, readFileSync } from "node:fs";
import { type Plugin, defineConfig } from "vite";

// What is no module of script, and so is not found by the bundler: fonts, and paths copied as text.
const OTHERS: [string, string][] = [
  ["@fontsource-variable/inter - 5.3.0 (OFL-1.1)", "node_modules/@fontsource-variable/inter/LICENSE"],
  ["@fontsource-variable/jetbrains-mono - 5.3.0 (OFL-1.1)", "node_modules/@fontsource-variable/jetbrains-mono/LICENSE"],
  ["Icons of Lucide (ISC)", "src/components/icons.LICENSE"],
];

function otherLicenses(): Plugin {
  return {
    name: "other-licenses",
    writeBundle({ dir }) {
      const texts = OTHERS.map(([title, file]) => `\n## ${title}\n\n${readFileSync(file, "utf8").trim()}\n`);
      appendFileSync(`${dir}/licenses.md`, texts.join(""));
    },
  };
}

// The built files are committed and served by the daemon itself: no other host, nothing inline.
export default defineConfig({
  base: "/static/",
  publicDir: false,
  plugins: [otherLicenses()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../aioflow/web/static",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: { fileName: "licenses.md" },
    reportCompressedSize: true,
    target: "es2022",
    rolldownOptions: {
      output: {
        entryFileNames: "page-[hash].js",
        chunkFileNames: "[name]-[hash].js",
        assetFileNames: "[name]-[hash][extname]",
      },
    },
  },
});
