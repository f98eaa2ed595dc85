package ctl

import (
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/web"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// pageOf serves the page of the fake cluster's supervisor.
func pageOf(t *testing.T, r ctltest.Remote) string {
	t.Helper()
	signer, err := pki.LoadSigner(filepath.Join(r.Dir, "sup.pem"), filepath.Join(r.Dir, "sup.key"))
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := pki.LoadVerifier(filepath.Join(r.Dir, "ca.pem"), clienttest.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	page := web.New(web.Config{Self: "sup-0", Cluster: clienttest.Cluster, Signer: signer, Verifier: verifier})
	h := httptest.NewServer(page)
	t.Cleanup(func() { page.Close(); h.Close() })
	return h.URL
}

// TestWebTakesClusterAsOtherCommandsDo: the supervisors of --server, of the environment or of the current context name their pages.
func TestWebTakesClusterAsOtherCommandsDo(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	env := map[string]string{"XDG_CONFIG_HOME": filepath.Join(t.TempDir(), "xdg"), "HOME": "/nonexistent"}
	t.Chdir(t.TempDir()) // no local cluster
	step := func(want string, code int, args ...string) {
		t.Helper()
		got := run(t, env, args...)
		if got.code != code || !strings.Contains(got.stdout+got.stderr, want) {
			t.Fatalf("%v: code %d, %q, %q: want %d and %q", args, got.code, got.stdout, got.stderr, code, want)
		}
	}
	step("no local cluster", 1, "web")
	step("context hall7 added", 0, append([]string{"config", "set-context", "hall7", "--server", r.Server.Address}, keys(r)...)...)
	step("no supervisor names a page for browsers", 1, "web")
	url := pageOf(t, r)
	r.Map.Edit(func(m *clienttest.Map) {
		m.Supervisors.Supervisors = []*lofamov1.Supervisor{
			{Id: "sup-1", State: lofamov1.State_FAILED, Web: "http://127.0.0.1:1"}, {Id: "sup-0", State: lofamov1.State_NORMAL, Web: url},
		}
	})
	link := url + "/#login="
	step(link, 0, "web")
	step(link, 0, "web", "--context", "hall7")
	step(link, 0, r.Flags("web")...)
	step(link, 0, "web", "--address", url)
	step("no page answers", 1, "web", "--address", "http://127.0.0.1:1")
	step("--as is for local clusters", 2, "web", "--as", "viewer")
	step("--dir and --region are of local clusters", 2, "web", "--region", "region-0")
	step(`--context "hall8": not in`, 2, "web", "--context", "hall8")
}
