package inventory

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/internal/config"
)

// A machine assembles the same bundle from the inventory and its keys as 'init' made, except for the mark that join
// needs.
func TestPlaceEqualsBundleOfInit(t *testing.T) {
	d, inv := made(t)
	for _, tc := range []struct {
		kind, id string
		place    func(Placement) (Bundle, error)
	}{
		{"nodes", "n1-0-1", func(p Placement) (Bundle, error) {
			i, err := inv.Node("n1-0-1")
			if err != nil {
				return Bundle{}, err
			}
			return inv.PlaceNode(i, p)
		}},
		{"supervisors", "s2", func(p Placement) (Bundle, error) {
			i, err := inv.Replica("1")
			if err != nil {
				return Bundle{}, err
			}
			return inv.PlaceSupervisor(i, p)
		}},
	} {
		// Keys of this member alone, as on its machine; and of all, as in a projected volume.
		for _, keys := range []string{d.file(tc.kind, tc.id), d.file(tc.kind)} {
			etc := t.TempDir()
			b, err := tc.place(Placement{Keys: keys, Etc: etc})
			if err != nil || b.ID != tc.id {
				t.Fatalf("%s from %s: %+v, %v", tc.id, keys, b, err)
			}
			files := map[string]string{}
			for _, dir := range []string{d.file(tc.kind, tc.id), etc} {
				var all strings.Builder
				for _, f := range []string{"agent.yaml", "supervisor.yaml", "gossip.key", "pki/ca.pem", "pki/host.key", "pki/dnp.pem",
					"pki/supervisor.key", "pki/supervisor-ecdsa.pem", "pki/supervisor-ecdsa.key", "pki/issuer.pem", "pki/issuer.key"} {
					if text, err := os.ReadFile(filepath.Join(dir, f)); err == nil {
						_, text = unmark(text)
						all.WriteString(f + "\n" + string(text))
					}
				}
				files[dir] = strings.ReplaceAll(all.String(), Etc+"/", etc+"/")
			}
			if diff := cmp.Diff(files[d.file(tc.kind, tc.id)], files[etc]); diff != "" {
				t.Errorf("%s from %s is not what init made:\n%s", tc.id, keys, diff)
			}
			if left, _ := filepath.Glob(filepath.Join(etc, ".place-*")); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		}
	}
}

// Settings override values from the inventory, and leave the others.
func TestPlaceSettingsOverrideInventory(t *testing.T) {
	d, inv := made(t)
	etc, settings := t.TempDir(), filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(settings, []byte("stateDir: /run/lofamo/agent\nsensors: {memory: {sickCorrected: 3}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := inv.PlaceNode(0, Placement{Keys: d.file("nodes"), Etc: etc, Settings: settings}); err != nil {
		t.Fatal(err)
	}
	got, err := config.LoadAgent(filepath.Join(etc, "agent.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.StateDir != "/run/lofamo/agent" || got.Sensors.Memory.SickCorrected != 3 || got.Sensors.Memory.OOMHold == 0 ||
		got.Coord != "0,0,0" {
		t.Errorf("stateDir %s, sickCorrected %v, oomHold %v, coord %s", got.StateDir, got.Sensors.Memory.SickCorrected,
			got.Sensors.Memory.OOMHold, got.Coord)
	}
}

// A replica that does not listen on the address and port of its health checks would be restarted for ever.
func TestPlaceListensOnHealthAddress(t *testing.T) {
	d, inv := made(t)
	settings := func(text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "supervisor.yaml")
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	all := settings("http: 0.0.0.0:7947\ngrpc: 0.0.0.0:7946\nweb: {listen: 0.0.0.0:7949}")
	own := netip.MustParseAddr(inv.Supervisors[0].Address)
	for _, tc := range []struct {
		host     netip.Addr
		settings string
		want     string // of the error
	}{
		{netip.Addr{}, "", ""},
		{own, "", ""},
		{netip.AddrFrom16(own.As16()), "", ""},
		{netip.MustParseAddr("192.0.2.1"), "", "kubelet probes this machine at 192.0.2.1: want an inventory with that address, or listen at " +
			"all addresses: http: 0.0.0.0:7947"},
		{netip.MustParseAddr("2001:db8::1"), "", "http: [::]:7947"},
		{netip.MustParseAddr("192.0.2.1"), all, ""},
		{own, settings("http: 0.0.0.0:8080"), "http: given 0.0.0.0:8080: want port 7947 of the inventory"},
		{own, settings("http: 10.0.0.101:8080"), "http: given 10.0.0.101:8080: want port 7947 of the inventory"},
		{own, settings("http: ''"), "http: given nothing: want port 7947 of 10.0.0.101, which the kubelet probes, or 0.0.0.0:7947"},
		{netip.Addr{}, settings("http: 0.0.0.0:8080"), ""},
		{netip.Addr{}, settings("http: ''"), ""},
	} {
		etc := t.TempDir()
		_, err := inv.PlaceSupervisor(0, Placement{Keys: d.file("supervisors"), Etc: etc, Settings: tc.settings, Host: tc.host})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("asked at %v: error %v: want %q", tc.host, err, tc.want)
		}
		if left, _ := os.ReadDir(etc); err != nil && len(left) > 0 {
			t.Errorf("asked at %v: refused, and wrote %v", tc.host, left)
		}
	}
}

// TestPlaceWithEnrolmentWantsIssuer: a supervisor that admits nodes beside those of the inventory needs the issuer. Keys from before that
// setting may lack it, and 'cluster place' waits for a missing file.
func TestPlaceWithEnrolmentWantsIssuer(t *testing.T) {
	d, inv := made(t)
	yes := true
	inv.Enrolment = &yes
	keys := t.TempDir()
	if err := os.CopyFS(keys, os.DirFS(d.file("supervisors", "s1"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(keys, "pki", issuerKey)), os.Remove(filepath.Join(keys, "pki", issuerCert))); err != nil {
		t.Fatal(err)
	}
	if _, err := inv.PlaceSupervisor(0, Placement{Keys: keys, Etc: t.TempDir()}); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "issuer.pem") {
		t.Errorf("without the issuer: %v: want it named as missing", err)
	}
	etc := t.TempDir()
	if _, err := inv.PlaceSupervisor(0, Placement{Keys: d.file("supervisors", "s1"), Etc: etc}); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.ReadSupervisor(filepath.Join(etc, supervisorFile), nil)
	if err != nil || cfg.Enrolment.Listen != "10.0.0.101:7944" || cfg.Renewal.Key != filepath.Join(etc, "pki", issuerKey) {
		t.Errorf("enrolment %q, renewal %q, %v: want both", cfg.Enrolment.Listen, cfg.Renewal.Key, err)
	}
}

// TestPlaceAfterRollback: a configuration that a later version wrote, with a key that this version does not know, is
// replaced. One of another member is refused.
func TestPlaceAfterRollback(t *testing.T) {
	d, inv := made(t)
	for _, tc := range []struct {
		kind, file, id string
		place          func(Placement) (Bundle, error)
	}{
		{"nodes", "agent.yaml", "node: n0-0-0", func(p Placement) (Bundle, error) { return inv.PlaceNode(0, p) }},
		{"supervisors", "supervisor.yaml", "id: s1", func(p Placement) (Bundle, error) { return inv.PlaceSupervisor(0, p) }},
	} {
		p := Placement{Keys: d.file(tc.kind), Etc: t.TempDir()}
		if _, err := tc.place(p); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(p.Etc, tc.file)
		made := read(t, path)
		write := func(text []byte) {
			t.Helper()
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(append(slices.Clone(made), "keyOfLaterVersion: {a: 1}\n"...))
		if _, err := tc.place(p); err != nil {
			t.Errorf("after a later version: %v", err)
		}
		if diff := cmp.Diff(string(made), string(read(t, path))); diff != "" {
			t.Errorf("%s after a later version:\n%s", tc.file, diff)
		}
		if !bytes.Contains(made, []byte(tc.id+"\n")) {
			t.Fatalf("%s has no line %q", tc.file, tc.id)
		}
		write(append(bytes.ReplaceAll(made, []byte(tc.id+"\n"), []byte(tc.id+"-other\n")), "keyOfLaterVersion: 1\n"...))
		if _, err := tc.place(p); err == nil || !strings.Contains(err.Error(), "-other: stop its service") {
			t.Errorf("over another member: %v", err)
		}
		write([]byte("id: [\n"))
		if _, err := tc.place(p); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("over a damaged file: %v: want an error with its name", err)
		}
	}
	p := Placement{Keys: d.file("nodes"), Etc: t.TempDir()}
	if err := os.WriteFile(filepath.Join(p.Etc, "agent.yaml"), []byte("dims: 2x2x2\ncoord: \"1,0,0\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := inv.PlaceNode(0, p); err == nil || !strings.Contains(err.Error(), "is that of n1-0-0: stop") {
		t.Errorf("over a node without a name, at another coordinate: %v", err)
	}
}

func TestPlaceRefusesWrongKeys(t *testing.T) {
	d, inv := made(t)
	settings := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(settings, []byte("mtu: 12\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknown := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(unknown, []byte("stateDirectory: /x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		p     Placement
		names string
	}{
		{Placement{Keys: d.file("nodes", "n1-0-0")}, "is that of lofamo://hall7/node/n1-0-0/host: want lofamo://hall7/node/n0-0-0/host"},
		{Placement{Keys: d.file("supervisors", "s1")}, "keys of n0-0-0: open"},
		{Placement{Keys: d.file("nodes"), Settings: settings}, "mtu: given 12"},
		{Placement{Keys: d.file("nodes"), Settings: unknown}, "stateDirectory"},
		{Placement{Keys: d.file("nodes"), Settings: unknown + ".none"}, "no such file"},
	} {
		tc.p.Etc = t.TempDir()
		_, err := inv.PlaceNode(0, tc.p)
		if err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%+v: error %v: want one that has %q", tc.p, err, tc.names)
		}
		if left, _ := os.ReadDir(tc.p.Etc); len(left) > 0 {
			t.Errorf("%+v: refused, and wrote %v", tc.p, left)
		}
	}
	for address, want := range map[string]int{"10.0.0.3": 2, "10.0.0.8": 7} {
		if i, err := inv.Node("worker-3", netip.MustParseAddr(address)); err != nil || i != want {
			t.Errorf("node at %s: %d, %v: want %d", address, i, err, want)
		}
	}
	if _, err := inv.Node("worker-9", netip.MustParseAddr("10.0.0.9")); err == nil ||
		!strings.Contains(err.Error(), `node "worker-9" with the addresses [10.0.0.9]`) {
		t.Errorf("a node that the inventory has not: %v", err)
	}
	for _, id := range []string{"s4", "3", "-1", ""} {
		if _, err := inv.Replica(id); err == nil || !strings.Contains(err.Error(), "want the id of one of the inventory's 3 supervisors") {
			t.Errorf("supervisor %q: %v", id, err)
		}
	}
}

// TestPlaceKeepsOtherClusterApart: a second cluster with the same names must not replace the keys of a replica that may run.
func TestPlaceKeepsOtherClusterApart(t *testing.T) {
	first, inv := made(t)
	second, _ := made(t)
	p := Placement{Keys: first.file("supervisors"), Etc: t.TempDir()}
	for range 2 {
		if _, err := inv.PlaceSupervisor(0, p); err != nil {
			t.Fatal(err)
		}
	}
	key := filepath.Join(p.Etc, "pki", "supervisor.key")
	before := read(t, key)
	p.Keys = second.file("supervisors")
	if _, err := inv.PlaceSupervisor(0, p); err == nil || !strings.Contains(err.Error(), "is from another authority") {
		t.Errorf("over the keys of another cluster: %v", err)
	}
	if !bytes.Equal(before, read(t, key)) {
		t.Error("the refused keys were written")
	}
}
