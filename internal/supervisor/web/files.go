package web

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// dist has the page in app/ if it was built before (make web); else only a placeholder.
//
//go:embed all:dist
var dist embed.FS

// embedded returns the embedded page, or nil for none.
func embedded() fs.FS {
	app, err := fs.Sub(dist, "dist/app")
	if err != nil {
		return nil
	}
	if _, err := fs.Stat(app, "index.html"); err != nil {
		return nil
	}
	return app
}

// Built reports whether this program contains the page.
func Built() bool { return embedded() != nil }

// missing replaces a page that is not embedded. It needs no script and no style.
const missing = `<!doctype html><html lang="en"><meta charset="utf-8"><title>LO|FA|MO</title>
<h1>The fault map is not in this program</h1>
<p>It was built without Node.js, or without <code>make web</code>. Everything else works:
<code>lofamoctl map</code> shows the same in a terminal.</p>
<p>To have it here: install Node.js 20.19, or 22.12 or later, with npm, run <code>make build</code>, and restart the supervisor.</p></html>
`

// pages serves the page. The names of its parts contain hashes of their contents, so they never change; browsers
// revalidate the page itself.
func pages(files fs.FS) http.Handler {
	if files == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(missing)) // the browser may have disconnected
		})
	}
	server := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clean := path.Clean(r.URL.Path)
		cache := "no-cache"
		if strings.HasPrefix(clean, "/assets/") {
			cache = "public, max-age=31536000, immutable"
		} else if clean != "/" && strings.HasSuffix(r.URL.Path, "/") {
			http.NotFound(w, r) // no lists of files
			return
		}
		w.Header().Set("Cache-Control", cache)
		if kind := contentType(clean); kind != "" {
			if b, err := fs.ReadFile(files, strings.TrimPrefix(clean, "/")); err == nil {
				w.Header().Set("Content-Type", kind)
				w.Header().Set("Vary", "Accept-Encoding")
				write(w, r, b)
				return
			}
		}
		server.ServeHTTP(w, r)
	})
}

// contentType returns the type of a compressible file, or "" for any other.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	}
	return ""
}
