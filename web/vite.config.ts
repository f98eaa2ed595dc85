import { defineConfig } from 'vite'

// The supervisors embed this folder, and serve it with a policy that lets nothing in from elsewhere: nothing is inlined.
export default defineConfig({
  build: {
    outDir: '../internal/supervisor/web/dist/app',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    chunkSizeWarningLimit: 900,
  },
})
