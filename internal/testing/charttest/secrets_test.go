package charttest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestKeysAreMadeOnce: 'lofamoctl cluster secrets', with the rights of the chart's Job alone, makes the keys of a cluster on a real API
// server, keeps them, makes again what is lost, and never replaces an authority.
func TestKeysAreMadeOnce(t *testing.T) {
	t.Parallel()
	program := filepath.Join(requirements.Set(t, "make build, and set it to bin", cluster.EnvBinDir), "lofamoctl")
	s, err := kubetest.Start(t.TempDir())
	if errors.Is(err, kubetest.ErrMissing) {
		requirements.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	k := server{t, s.Admin}
	for _, o := range objects(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: lofamo}\n") {
		k.apply(o, "")
	}
	dir := t.TempDir()
	inv := filepath.Join(dir, "inventory.yaml")
	write(t, inv, "cluster: hall7\ndims: 0x0x0\nsupervisors:\n- {id: s1, address: 10.0.0.1}\n"+
		"- {id: s2, address: 10.0.0.2}\n- {id: s3, address: 10.0.0.3}\n")
	values := filepath.Join(dir, "values.yaml")
	write(t, values, "images: {registry: r}\nsupervisors: {keys: {from: job}, nodes: {s1: a, s2: b, s3: c}}\n")
	for _, o := range render(t, "--values", values, "--set-file", "inventory="+inv) {
		if strings.HasSuffix(o.text("metadata", "name"), "-keys") && o.text("kind") != "CronJob" && o.text("kind") != "Deployment" {
			k.apply(o, "")
		}
	}
	token, err := s.Admin.TokenOf("lofamo", "lofamo-keys")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "kubeconfig")
	if err := s.Kubeconfig(config, s.Addr, token); err != nil {
		t.Fatal(err)
	}
	run := func(file string) (string, error) {
		out, err := exec.CommandContext(t.Context(), program, "cluster", "secrets", file, "--namespace", "lofamo",
			"--kubeconfig", config).CombinedOutput()
		return string(out), err
	}
	says := func(what string, n int) {
		t.Helper()
		out, err := run(inv)
		if err != nil || strings.Count(out, ": "+what+"\n") != n {
			t.Fatalf("%v: want %d × %s:\n%s", err, n, what, out)
		}
	}
	secret := func(name string) map[string]string {
		t.Helper()
		b, err := k.c.Do(http.MethodGet, "/api/v1/namespaces/lofamo/secrets/lofamo-"+name, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		var o struct{ Data map[string]string }
		if err := json.Unmarshal(b, &o); err != nil {
			t.Fatal(err)
		}
		return o.Data
	}
	drop := func(kind, name string) {
		t.Helper()
		if _, err := k.c.Do(http.MethodDelete, "/api/v1/namespaces/lofamo/"+kind+"/lofamo-"+name, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	const all = 8 // the authority, its certificates, three supervisors, three people
	says("made", all)
	authority, second := secret("authority"), secret("supervisor-s2")
	says("unchanged", all)
	drop("secrets", "viewer")
	drop("configmaps", "ca")
	says("made", 2)
	if got := secret("authority"); got["ca.key"] == "" || got["ca.key"] != authority["ca.key"] {
		t.Error("the authority's key has changed")
	}

	// Half of a pair: the supervisor gets new ones, and nobody else.
	k.apply(object{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "lofamo-supervisor-s2", "namespace": "lofamo"},
		"data": map[string]any{"supervisor.pem": second["supervisor.pem"]}}, "")
	if _, err := k.c.Do(http.MethodPatch, "/api/v1/namespaces/lofamo/secrets/lofamo-supervisor-s2", kubetest.MergePatch,
		[]byte(`{"data":{"supervisor.key":null}}`)); err != nil {
		t.Fatal(err)
	}
	says("changed", 1)
	if got := secret("supervisor-s2"); got["supervisor.key"] == "" || got["supervisor.pem"] == second["supervisor.pem"] {
		t.Error("the supervisor has no new pair")
	}

	other := filepath.Join(dir, "other.yaml")
	write(t, other, "cluster: hall8\ndims: 0x0x0\nsupervisors: [{id: s1, address: 10.0.0.1}]\n")
	if out, err := run(other); err == nil || !strings.Contains(out, "cluster: given hall8: want hall7") {
		t.Errorf("another cluster's inventory: %v: %s", err, out)
	}
	drop("secrets", "authority")
	if out, err := run(inv); err == nil || !strings.Contains(out, "the Secret for authority is missing") {
		t.Errorf("without the authority: %v: %s", err, out)
	}
	k.apply(object{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "lofamo-authority", "namespace": "lofamo"},
		"data": map[string]any{"inventory.yaml": base64.StdEncoding.EncodeToString(fmt.Append(nil, "cluster: ["))}}, "")
	if out, err := run(inv); err == nil || !strings.Contains(out, "authority: ") {
		t.Errorf("a broken inventory: %v: %s", err, out)
	}
	k.apply(object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "nobody", "namespace": "lofamo"}}, "")
	if token, err = s.Admin.TokenOf("lofamo", "nobody"); err != nil {
		t.Fatal(err)
	}
	if err := s.Kubeconfig(config, s.Addr, token); err != nil {
		t.Fatal(err)
	}
	if out, err := run(inv); err == nil || !strings.Contains(out, "forbidden") || !strings.Contains(out, "lofamo/lofamo-authority") {
		t.Errorf("without rights: %v: %s", err, out)
	}
}
