package charttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// registry returns a directory with one image, static:latest, modelled on real ones: it has users and certificates, and
// no programs.
func registry(t *testing.T) string {
	t.Helper()
	blobs := map[string][]byte{}
	digest := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	has := func(b []byte) string {
		d := digest(b)
		blobs[d] = b
		return d
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for name, text := range map[string]string{"etc/passwd": "nonroot:x:65532:65532:nonroot:/:/nonexistent\n",
		"etc/ssl/certs/ca-certificates.crt": "# none here\n"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	plain := digest(layer.Bytes())
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(layer.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const oci = "application/vnd.oci.image."
	described := func(kind string, b []byte) map[string]any {
		return map[string]any{"mediaType": oci + kind, "digest": has(b), "size": len(b)}
	}
	config := encode(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"User": "65532:65532"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{plain}},
	})
	manifest := encode(map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": described("config.v1+json",
			config), "layers": []any{described("layer.v1.tar+gzip", packed.Bytes())},
	})
	of := described("manifest.v1+json", manifest)
	of["platform"] = map[string]any{"architecture": "amd64", "os": "linux"}
	index := encode(map[string]any{"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": []any{of}})
	has(index)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		b, ok := blobs[name]
		switch {
		case r.URL.Path == "/v2/":
			return
		case name == "latest":
			b = index
		case !ok:
			http.NotFound(w, r)
			return
		}
		var kind struct {
			MediaType string `json:"mediaType"`
		}
		if strings.Contains(r.URL.Path, "/manifests/") && json.Unmarshal(b, &kind) == nil {
			w.Header().Set("Content-Type", kind.MediaType)
		}
		w.Header().Set("Docker-Content-Digest", digest(b))
		_, _ = w.Write(b)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// image is an image of a tarball.
type image struct {
	RepoTags []string
	Config   string
	Layers   []string
}

// unpack returns the files of a tarball or of a layer, which may be compressed.
func unpack(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "/")] = b
	}
}

// TestImagesHaveOneStaticProgram: the images of 'make images' consist of their base and one static program, and run as the base's user. The
// test builds everything again without a libc, which takes minutes.
func TestImagesHaveOneStaticProgram(t *testing.T) {
	onlyLong(t)
	make := requirements.Program(t, "package make", "make")
	dir := t.TempDir()
	file := filepath.Join(dir, "lofamo.tar")
	cmd := exec.CommandContext(t.Context(), make, "-C", root, "images", "REGISTRY=registry.example.org/lofamo",
		"BASE="+registry(t)+"/static", "TARBALL="+file)
	cmd.Env = append(os.Environ(), "PLATFORM=linux/amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	files := unpack(t, f)
	var images []image
	if err := json.Unmarshal(files["manifest.json"], &images); err != nil {
		t.Fatal(err)
	}
	var programs []string
	for _, im := range images {
		if len(im.RepoTags) != 1 {
			t.Fatalf("tags: %q: want one", im.RepoTags)
		}
		name, version, _ := strings.Cut(strings.TrimPrefix(im.RepoTags[0], "registry.example.org/lofamo/"), ":")
		programs = append(programs, name)
		var config struct {
			Config struct {
				User       string
				Entrypoint []string
			}
		}
		if err := json.Unmarshal(files[im.Config], &config); err != nil {
			t.Fatal(err)
		}
		if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/ko-app/" + name}) {
			t.Errorf("%s: user %q, entry point %q", name, c.User, c.Entrypoint)
		}
		var all []string
		for _, layer := range im.Layers {
			z, err := gzip.NewReader(bytes.NewReader(files[layer]))
			if err != nil {
				t.Fatal(err)
			}
			for n, b := range unpack(t, z) {
				all = append(all, n)
				if n == "ko-app/"+name {
					static(t, filepath.Join(dir, name), b, version)
				}
			}
		}
		slices.Sort(all)
		if want := []string{"etc/passwd", "etc/ssl/certs/ca-certificates.crt", "ko-app/" + name}; !slices.Equal(all, want) {
			t.Errorf("%s has %q: want %q", name, all, want)
		}
	}
	slices.Sort(programs)
	if want := []string{"lofamo-agent", "lofamo-executor", "lofamo-supervisor", "lofamoctl", "supervisor"}; !slices.Equal(programs, want) {
		t.Errorf("images of %q: want %q", programs, want)
	}
}

// static checks that a program needs only the kernel and has the given version.
func static(t *testing.T, path string, b []byte, version string) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s wants a loader", path)
		}
	}
	if err := os.WriteFile(path, b, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), path, "version").CombinedOutput(); err != nil || !strings.Contains(string(out), version) {
		t.Errorf("%s: %v: %s: want version %s", path, err, out, version)
	}
}
