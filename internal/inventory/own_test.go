package inventory

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
)

func joined(t *testing.T, d *Dir, root, id string, want Config) error {
	t.Helper()
	b, err := OpenBundle(d.file("nodes", id))
	if err != nil {
		t.Fatal(err)
	}
	return b.Install(root, -1, -1, want)
}

// An operator's changes in a machine's configuration survive a change of keys, and an inventory with changes of its own
// does not silently replace them.
func TestJoinKeepsConfiguration(t *testing.T) {
	d, inv := made(t)
	root, id := t.TempDir(), "n0-0-0"
	path := filepath.Join(root, Etc, "agent.yaml")
	if err := joined(t, d, root, id, ConfigSafe); err != nil {
		t.Fatal(err)
	}
	// An unchanged configuration follows the inventory.
	inv.Ports.AgentHTTP = 7150
	if _, err := d.Update(inv); err != nil {
		t.Fatal(err)
	}
	if err := joined(t, d, root, id, ConfigSafe); err != nil || !bytes.Equal(read(t, path), read(t, d.file("nodes", id, "agent.yaml"))) {
		t.Fatalf("not changed on the machine: %v: want the bundle's", err)
	}
	own := bytes.Replace(read(t, path), []byte("preset: default"), []byte("preset: fast"), 1)
	if err := os.WriteFile(path, own, 0o600); err != nil {
		t.Fatal(err)
	}
	_, ownText := unmark(own)
	key := read(t, filepath.Join(root, Etc, "pki", "host.key"))
	for _, step := range []Step{StepAdd, StepUse} {
		if _, err := d.Rotate(step, false); err != nil {
			t.Fatal(err)
		}
		if err := joined(t, d, root, id, ConfigSafe); err != nil || !bytes.Equal(read(t, path), own) {
			t.Fatalf("%s: %v: the configuration that was changed on the machine is lost", step, err)
		}
	}
	if bytes.Equal(key, read(t, filepath.Join(root, Etc, "pki", "host.key"))) {
		t.Error("the keys are not new")
	}
	// Changed at both ends.
	inv.Ports.AgentHTTP = 7151
	if _, err := d.Update(inv); err != nil {
		t.Fatal(err)
	}
	if err := joined(t, d, root, id, ConfigSafe); err == nil ||
		!strings.Contains(err.Error(), "differs from the bundle's in http, preset: want --config keep") || !bytes.Equal(read(t, path), own) {
		t.Errorf("changed on the machine and in the inventory: %v", err)
	}
	if err := joined(t, d, root, id, ConfigKeep); err != nil || !bytes.HasSuffix(read(t, path), append([]byte("\n"), ownText...)) {
		t.Errorf("keep: %v", err)
	}
	if err := joined(t, d, root, id, ConfigReplace); err != nil || !bytes.Equal(read(t, path), read(t, d.file("nodes", id, "agent.yaml"))) {
		t.Errorf("replace: %v", err)
	}
	if err := joined(t, d, root, id, "ask"); err == nil || !strings.Contains(err.Error(), `given "ask": want keep or replace`) {
		t.Errorf("%v", err)
	}
	// A configuration without a mark belongs to the user.
	if err := os.WriteFile(path, own[bytes.IndexByte(own, '\n')+1:], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := joined(t, d, root, id, ConfigSafe); err == nil || !strings.Contains(err.Error(), "differs from the bundle's in ") {
		t.Errorf("without the line that says what it was made from: %v", err)
	}
}

// TestKeptConfigurationStaysKept: after '--config keep', joins refuse only if the bundle's configuration has changed again.
func TestKeptConfigurationStaysKept(t *testing.T) {
	for _, marked := range []bool{true, false} {
		d, inv := made(t)
		root, id := t.TempDir(), "n0-0-0"
		path := filepath.Join(root, Etc, agentFile)
		if err := joined(t, d, root, id, ConfigSafe); err != nil {
			t.Fatal(err)
		}
		_, own := unmark(read(t, path))
		own = append(slices.Clone(own), "maxHops: 9\n"...)
		file := own
		if marked {
			file = append(read(t, path), "maxHops: 9\n"...)
		}
		if err := errors.Join(os.WriteFile(path, file, 0o644), os.Chmod(path, 0o640)); err != nil {
			t.Fatal(err)
		}
		inv.Preset = "relaxed"
		if _, err := d.Update(inv); err != nil {
			t.Fatal(err)
		}
		if err := joined(t, d, root, id, ConfigSafe); err == nil {
			t.Error("both have changed: want an error")
		}
		stays := func(when string, want Config) {
			t.Helper()
			if err := joined(t, d, root, id, want); err != nil {
				t.Errorf("%s, marked %t: %v", when, marked, err)
			}
			if _, got := unmark(read(t, path)); !bytes.Equal(got, own) {
				t.Errorf("%s, marked %t: the configuration has changed", when, marked)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
				t.Errorf("%s, marked %t: mode %v, %v: want 0640", when, marked, info.Mode(), err)
			}
		}
		stays("keep", ConfigKeep)
		for _, step := range []Step{StepAdd, StepUse, StepRemove} { // only keys are new
			if _, err := d.Rotate(step, false); err != nil {
				t.Fatal(err)
			}
			stays(string(step), ConfigSafe)
		}
		inv.Preset = "fast"
		if _, err := d.Update(inv); err != nil {
			t.Fatal(err)
		}
		if err := joined(t, d, root, id, ConfigSafe); err == nil {
			t.Error("the bundle's has changed again: want an error")
		}
		// A link that another tool manages stays.
		if err := errors.Join(os.Rename(path, path+".managed"), os.Symlink(path+".managed", path)); err != nil {
			t.Fatal(err)
		}
		stays("link", ConfigKeep)
		if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSymlink {
			t.Errorf("the link was replaced: %v, %v", info.Mode(), err)
		}
	}
}

// Settings in the operator's directory are in the bundles, and stay there when keys are changed.
func TestOperatorSettingsSurviveRotation(t *testing.T) {
	d, inv := made(t)
	if err := os.Mkdir(d.file("settings"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(d.file("settings", "agent.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("jobs: {socket: /run/lofamo-jobs/local.sock}\n")
	changed, err := d.Update(inv)
	if err != nil || len(changed) != len(inv.Nodes) || slices.Contains(changed, "supervisors/s1") {
		t.Errorf("%v, %v: want the nodes", changed, err)
	}
	if _, err := d.Rotate(StepAdd, false); err != nil {
		t.Fatal(err)
	}
	if a, err := config.LoadAgent(d.file("nodes", "n0-0-0", "agent.yaml"), nil); err != nil || a.Jobs.Socket != "/run/lofamo-jobs/local.sock" {
		t.Errorf("%+v, %v", a.Jobs, err)
	}
	write("jobs: {sockets: /x}\n")
	if _, err := d.Update(inv); err == nil || !strings.Contains(err.Error(), "sockets") ||
		!strings.Contains(err.Error(), d.file("settings", "agent.yaml")) {
		t.Errorf("an unknown key: %v", err)
	}
}

// A cluster that begins without nodes has no bundles for them: its settings and keys can change all the same.
func TestClusterWithoutNodesIsChanged(t *testing.T) {
	d, inv := Open(filepath.Join(t.TempDir(), "hall7")), load(t)
	inv.Nodes, inv.Spares, inv.Dims = nil, nil, "0x0x0"
	if err := d.Init(inv); err != nil {
		t.Fatal(err)
	}
	if changed, err := d.Update(inv); err != nil || len(changed) != 0 {
		t.Errorf("without a change: %v, %v: want none", changed, err)
	}
	if err := os.Mkdir(d.file("settings"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.file("settings", "supervisor.yaml"), []byte("enrolment: {forgetAfter: 24h}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := d.Update(inv); err != nil || len(changed) != len(inv.Supervisors) {
		t.Errorf("with a setting: %v, %v: want the supervisors", changed, err)
	}
	s, err := config.LoadSupervisor(d.file("supervisors", "s1", "supervisor.yaml"), nil)
	if err != nil || s.Enrolment.Listen == "" || s.Enrolment.ForgetAfter.D() != 24*time.Hour {
		t.Errorf("%+v, %v: want the address and the setting", s.Enrolment, err)
	}
	for _, step := range []Step{StepAdd, StepUse, StepRemove} {
		if _, err := d.Rotate(step, false); err != nil {
			t.Errorf("%v: %v", step, err)
		}
	}
}
