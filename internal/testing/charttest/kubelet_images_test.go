package charttest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// imaged are the programs that the chart runs.
var imaged = []string{"lofamo-agent", "lofamo-supervisor", "lofamoctl"}

// kubeletImages makes images of the releases' programs in tarballs. Their entry point, path and user are those of 'make images'. They also
// hold the libraries that each program needs, because go build links with a libc.
func kubeletImages(t *testing.T, releases []release, dir string) []string {
	t.Helper()
	pause := filepath.Join(dir, "pause")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", pause, "./testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out := []string{tarball(t, filepath.Join(dir, "pause.tar"), pause, "docker.io/lab/pause:1")}
	for _, r := range releases {
		for _, name := range imaged {
			path := filepath.Join(dir, name+"-"+r.tag+".tar")
			out = append(out, tarball(t, path, filepath.Join(r.programs, name), "docker.io/lab/"+name+":"+r.tag))
		}
	}
	return out
}

// tarball writes an image of one program in the format of 'docker save'.
func tarball(t *testing.T, path, program, tag string) string {
	t.Helper()
	files := map[string]string{"ko-app/" + filepath.Base(program): program}
	libraries, err := exec.CommandContext(t.Context(), "ldd", program).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // a static program is an error
		t.Fatal(err)
	}
	for _, lib := range regexp.MustCompile(`(?:=> |\t)(/\S+)`).FindAllStringSubmatch(string(libraries), -1) {
		files[lib[1][1:]] = lib[1]
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	add := func(w *tar.Writer, name string, mode int64, b []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(b))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		add(w, name, 0o755, b)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	config := encode(map[string]any{"architecture": "amd64", "os": "linux", "config": map[string]any{
		"Entrypoint": []string{"/ko-app/" + filepath.Base(program)}, "User": "65532:65532", "Env": []string{"PATH=/ko-app"},
	}, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}}})
	var all bytes.Buffer
	w = tar.NewWriter(&all)
	add(w, "config.json", 0o644, config)
	add(w, "layer.tar", 0o644, layer.Bytes())
	add(w, "manifest.json", 0o644, encode([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{tag}, "Layers": []string{"layer.tar"},
	}}))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, all.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
