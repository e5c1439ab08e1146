import { defineConfig } from "vite";

// The built files are committed and served by the daemon itself: no other host, nothing inline.
export default defineConfig({
  base: "/static/",
  publicDir: false,
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
