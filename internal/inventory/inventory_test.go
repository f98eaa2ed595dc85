package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// example is the inventory that is shipped.
const example = "../../deploy/examples/inventory.yaml"

func load(t *testing.T) Inventory {
	t.Helper()
	inv, err := Load(example)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func made(t *testing.T) (*Dir, Inventory) {
	t.Helper()
	d, inv := Open(filepath.Join(t.TempDir(), "hall7")), load(t)
	if err := d.Init(inv); err != nil {
		t.Fatal(err)
	}
	return d, inv
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestInvalidInventoryNamesField(t *testing.T) {
	for _, tc := range []struct {
		change func(*Inventory)
		names  string
	}{
		{func(i *Inventory) { i.Cluster = "" }, "cluster: given nothing"},
		{func(i *Inventory) { i.Dims = "2x2xz" }, "dims: "},
		{func(i *Inventory) { i.NodeCertificateDays = 366 }, "nodeCertificateDays: given 366: want 1 to 365, or 0"},
		{func(i *Inventory) { i.NodeCertificateDays = -1 }, "nodeCertificateDays: given -1"},
		{func(i *Inventory) { i.Ports.Links = 65534 }, "ports.links: given 65534: want 1 to 65530"},
		{func(i *Inventory) { i.Supervisors = i.Supervisors[1:] }, "supervisors: given 2: want 1, 3 or 5"},
		{func(i *Inventory) { i.Supervisors[0].Address = "s1" }, "supervisors[0].address: given s1"},
		{func(i *Inventory) { i.Supervisors[0].ID = "../s1" }, "supervisors[0].id: given ../s1"},
		{func(i *Inventory) { i.Supervisors[1].ID = "s1" }, "supervisors[1].id: given s1: want a name of its own: supervisors[0].id has it"},
		{func(i *Inventory) { i.Supervisors[1].Ports.GRPC = -1 }, "supervisors[1].ports.grpc: given -1"},
		{func(i *Inventory) { i.Nodes = i.Nodes[1:] }, "nodes: given 7 places: want all 8 of the 2x2x2 torus"},
		{func(i *Inventory) { i.Nodes[0].Coord = "2,0,0" }, "nodes[0].coord: "},
		{func(i *Inventory) { i.Nodes[1].Coord = "0,0,0" }, "nodes[1].coord: given 0,0,0: want a place of its own: nodes[0] has it"},
		{func(i *Inventory) { i.Nodes[1].ID = "n0-0-0" }, "nodes[1].id: given n0-0-0: want a name of its own"},
		{func(i *Inventory) { i.Nodes[1].Service = "0.0.0.0" }, `nodes[1].service: given "0.0.0.0"`},
		{func(i *Inventory) { i.Nodes[1].Links = map[string]Link{"W+": {Address: "10.0.0.1"}} },
			"nodes[1].links.W+: want a direction in which the node has a link"},
		{func(i *Inventory) { i.Nodes[1].Links = map[string]Link{"X+": {}} }, "nodes[1].links.X+.address: given"},
		{func(i *Inventory) { i.Spares = []Node{{Service: "10.0.0.9"}} }, "spares[0].id: given nothing"},
		{func(i *Inventory) { i.Nodes[1].Service = i.Nodes[0].Service },
			"node n1-0-0: service: given 10.0.0.1:7100: want another address: node n0-0-0: service has this one"},
		{func(i *Inventory) { i.Spares = []Node{{ID: "x", Service: i.Nodes[0].Service}} }, "node x: service: given "},
		{func(i *Inventory) { i.Supervisors[1].Address = i.Supervisors[0].Address }, "supervisor s2: ports.report: given "},
		{func(i *Inventory) { i.Supervisors[0].Address, i.Supervisors[1].Address = "fd00::1", "FD00:0::1" },
			"supervisor s2: ports.report: given [FD00:0::1]:7945: want another address: supervisor s1: ports.report has this one"},
		{func(i *Inventory) { i.Supervisors[0].Address, i.Nodes[0].Service = "FD00::1", "[fd00:0::1]:7945" },
			"node n0-0-0: service: given [fd00::1]:7945: want another address: supervisor s1: ports.report has this one"},
		{func(i *Inventory) { i.Supervisors[1].Address = "::ffff:" + i.Supervisors[0].Address },
			"supervisor s2: ports.report: given [::ffff:10.0.0.101]:7945: want another address: supervisor s1"},
		{func(i *Inventory) { i.Supervisors[0].Ports.GRPC = i.Ports.or(defaultPorts).HTTP }, "supervisor s1: ports.http: given "},
		{func(i *Inventory) { i.Ports.Links, i.Ports.AgentHTTP = 7110, 7111 },
			"node n0-0-0: links.X-: given 10.0.0.1:7111: want another address: node n0-0-0: ports.agentHTTP has this one"},
		{func(i *Inventory) { i.Spares = []Node{{ID: "x", Coord: "0,0,0", Service: "10.0.0.9"}} }, "spares[0].coord: given 0,0,0: want none"},
	} {
		inv := load(t)
		tc.change(&inv)
		if err := inv.Validate(); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("error %v: want one that has %q", err, tc.names)
		}
	}
	bad := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(bad, []byte("cluster: x\nnode: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(bad); err == nil || !strings.Contains(err.Error(), "node") {
		t.Errorf("unknown key: %v", err)
	}
	if _, err := Load(bad + ".none"); err == nil {
		t.Error("a file that is not there is taken")
	}
}

// Every bundle passes the checks of its machine, and the configurations of a link's two ends agree.
func TestInitMakesConsistentBundles(t *testing.T) {
	d, inv := made(t)
	agents := map[fault.NodeID]config.Agent{}
	for _, n := range inv.Nodes {
		at, err := grid.ParseCoord(n.Coord)
		if err != nil {
			t.Fatal(err)
		}
		c := n.name(at)
		b, err := OpenBundle(d.file("nodes", string(c)))
		if err != nil {
			t.Fatal(err)
		}
		if ip := netip.MustParseAddr(n.Service); b.Service != "lofamo-agent" || b.ID != string(c) || !slices.Equal(b.Listen, []netip.Addr{ip}) {
			t.Errorf("%s: %+v", c, b)
		}
		if agents[c], err = config.LoadAgent(d.file("nodes", string(c), "agent.yaml"), nil); err != nil {
			t.Fatal(err)
		}
	}
	for id, a := range agents {
		for dir, l := range a.Links {
			opposite := dir[:1] + map[string]string{"+": "-", "-": "+"}[dir[1:]]
			if back := agents[l.PeerNode].Links[opposite]; back.Local != l.Peer || back.Peer != l.Local || back.PeerNode != id {
				t.Errorf("%s %s: %+v, and at its other end %+v", id, dir, l, back)
			}
		}
	}
	for _, s := range inv.Supervisors {
		b, err := OpenBundle(d.file("supervisors", s.ID))
		if err != nil || b.Service != "lofamo-supervisor" || b.ID != s.ID {
			t.Errorf("%s: %+v, %v", s.ID, b, err)
		}
		if start := b.StartCommand(); !slices.Contains(start, "--no-block") { // the first of three is ready only when the second runs
			t.Errorf("%s: started by %q", s.ID, start)
		}
	}
	if st, err := os.Stat(d.file("ca.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("ca.key: %v, %v", st, err)
	}
	if err := filepath.WalkDir(d.path, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.Name() == "ca.key" && p != d.file("ca.key") {
			t.Errorf("%s: the authority's key leaves the operator", p)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := d.Init(inv); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("made again over the first: %v", err)
	}
}

// One more spare changes every replica and no other machine; a replacement for a lost machine gets new keys.
func TestUpdateChangesOnlyAffectedMachines(t *testing.T) {
	d, inv := made(t)
	inv.Spares = append(inv.Spares, Node{ID: "spare-0", Service: "10.0.0.9"})
	changed, err := d.Update(inv)
	if want := []string{"nodes/spare-0", "supervisors/s1", "supervisors/s2", "supervisors/s3"}; err != nil || !slices.Equal(changed, want) {
		t.Errorf("%v, %v: want %v", changed, err, want)
	}
	if changed, err := d.Update(inv); err != nil || len(changed) > 0 {
		t.Errorf("the same again: %v, %v", changed, err)
	}
	before := read(t, d.file("nodes", "n1-0-0", "pki", "host.key"))
	if changed, err := d.Update(inv, "n1-0-0"); err != nil || !slices.Equal(changed, []string{"nodes/n1-0-0"}) ||
		bytes.Equal(before, read(t, d.file("nodes", "n1-0-0", "pki", "host.key"))) {
		t.Errorf("renewed: %v, %v", changed, err)
	}
	inv.Supervisors[0].Address = "10.0.0.111"
	if _, err := d.Update(inv); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBundle(d.file("supervisors", "s1")); err != nil {
		t.Error(err)
	}
	inv.Spares = nil
	if _, err := d.Update(inv); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.file("nodes", "spare-0")); err == nil {
		t.Error("the bundle of a spare that is gone stays")
	}
	inv.Cluster = "other"
	if _, err := d.Update(inv); err == nil || !strings.Contains(err.Error(), "cluster: given other: want hall7") {
		t.Errorf("%v", err)
	}
}

// member is a machine's part of its bundle at a step of a change of keys.
type member struct {
	signer *pki.Signer
	verify *pki.Verifier
	keys   [][]byte
}

func memberOf(t *testing.T, d *Dir, id string) member {
	t.Helper()
	file := func(elem ...string) string { return d.file(append([]string{"nodes", id}, elem...)...) }
	var m member
	var err error
	if m.signer, err = pki.LoadSigner(file("pki", "host.pem"), file("pki", "host.key")); err != nil {
		t.Fatal(err)
	}
	if m.verify, err = pki.LoadVerifier(file("pki", "ca.pem"), "hall7"); err != nil {
		t.Fatal(err)
	}
	if m.keys, err = pki.LoadGossipKeys(file("gossip.key")); err != nil {
		t.Fatal(err)
	}
	return m
}

// understands reports whether m accepts other's signature and gossip.
func (m member) understands(other member) bool {
	word := []byte("a report")
	_, err := m.verify.Verify(other.signer.Cert(), word, other.signer.Sign(word))
	return err == nil && slices.ContainsFunc(m.keys, func(k []byte) bool { return bytes.Equal(k, other.keys[0]) })
}

// At each step of a change of all keys, a machine with the new step and one without it accept each other; after the
// last step, the first keys are worthless.
func TestRotationStepsAcceptEachOther(t *testing.T) {
	d, _ := made(t)
	first := memberOf(t, d, "n0-0-0")
	if _, err := d.Rotate(StepUse, false); err == nil || !strings.Contains(err.Error(), "want add") {
		t.Errorf("use before add: %v", err)
	}
	if _, err := d.Rotate("revoke", false); err == nil {
		t.Error("an unknown step is taken")
	}
	before := first
	for _, step := range []Step{StepAdd, StepUse, StepRemove} {
		changed, err := d.Rotate(step, step == StepAdd)
		if err != nil || len(changed) != 11 {
			t.Fatalf("%s: %d changed, %v", step, len(changed), err)
		}
		now := memberOf(t, d, "n0-0-0")
		if !now.understands(before) || !before.understands(now) {
			t.Errorf("%s: who has gone on understands who has not: %t, and the other way: %t", step, now.understands(before),
				before.understands(now))
		}
		if step != StepRemove { // repeat the step
			again, err := d.Rotate(step, false)
			if err != nil || len(again) > 0 {
				t.Errorf("%s again: %v, %v", step, again, err)
			}
		}
		if _, err := OpenBundle(d.file("supervisors", "s1")); err != nil {
			t.Errorf("%s: %v", step, err)
		}
		before = now
	}
	if before.understands(first) || len(before.keys) != 1 {
		t.Error("what was at first is still taken")
	}
	if _, err := d.Rotate(StepUse, false); err == nil {
		t.Error("use after remove is taken")
	}
	if inv, err := d.Inventory(); err != nil {
		t.Error(err)
	} else if changed, err := d.Update(inv); err != nil || len(changed) > 0 {
		t.Errorf("after the change: %v, %v", changed, err)
	}
}

// An interrupted step is repeated as a whole, and no other step may replace it: otherwise members keep certificates of
// an authority that the last step removes from the others.
func TestInterruptedRotationIsRepeated(t *testing.T) {
	d, inv := made(t)
	l, err := inv.Layout()
	if err != nil {
		t.Fatal(err)
	}
	// The last but one cannot be written: those before it have the step, and it and the last have not.
	broken := d.file("nodes", string(l.Nodes[len(l.Nodes)-2].ID), "pki")
	for _, step := range []Step{StepAdd, StepUse, StepRemove} {
		if err := errors.Join(os.Rename(broken, broken+".away"), os.WriteFile(broken, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Rotate(step, step == StepAdd); err == nil {
			t.Fatalf("%s: a bundle that cannot be written is passed over", step)
		}
		if err := errors.Join(os.Remove(broken), os.Rename(broken+".away", broken)); err != nil {
			t.Fatal(err)
		}
		if next, ok := map[Step]Step{StepAdd: StepUse, StepUse: StepRemove}[step]; ok {
			if _, err := d.Rotate(next, false); err == nil || !strings.Contains(err.Error(), "want "+string(step)+", which was broken off") {
				t.Fatalf("%s after %s was broken off: %v", next, step, err)
			}
		}
		want := fmt.Sprintf("step %s of rotate-keys was broken off: first repeat 'rotate-keys --step %[1]s'", step)
		if _, err := d.Update(inv); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("update after %s was broken off: %v: want %q", step, err, want)
		}
		if _, err := d.Issue(pki.RoleApprover, "anna"); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("issue after %s was broken off: %v: want %q", step, err, want)
		}
		if changed, err := d.Rotate(step, false); err != nil || len(changed) != 11 {
			t.Fatalf("%s again: told of %d changed, %v: want all 11, for nobody was told of those that the first attempt changed", step,
				len(changed), err)
		}
	}
	first := memberOf(t, d, string(l.Nodes[0].ID))
	for _, n := range l.Nodes {
		if _, err := OpenBundle(d.file("nodes", string(n.ID))); err != nil {
			t.Errorf("%s: %v", n.ID, err)
		}
		if m := memberOf(t, d, string(n.ID)); !m.understands(first) || !first.understands(m) {
			t.Errorf("%s and %s do not understand each other", n.ID, l.Nodes[0].ID)
		}
	}
}

// TestBrokenOffKeysAreMadeAgain: the first attempt of step add ends in the middle, and the step is repeated without the
// flag --authority. No key may end beside another key's certificate.
func TestBrokenOffKeysAreMadeAgain(t *testing.T) {
	for _, tc := range []struct {
		name      string
		interrupt func(d *Dir) error
		repair    func(d *Dir) error
	}{
		{"an issuer's key without its certificate", func(d *Dir) error {
			return errors.Join(os.Mkdir(d.file(nextDir), 0o700), newIssuer("hall7", d.file(nextDir), time.Hour),
				os.Remove(d.file(nextDir, issuerCert)), os.Mkdir(d.file(nextDir, issuerCert), 0o700))
		}, func(d *Dir) error { return os.Remove(d.file(nextDir, issuerCert)) }},
		{"an authority's key without its certificate", func(d *Dir) error {
			return errors.Join(os.Mkdir(d.file(nextDir), 0o700), os.MkdirAll(d.file(nextDir, caCert, "in the way"), 0o700))
		}, func(d *Dir) error { return os.RemoveAll(d.file(nextDir, caCert)) }},
		{"a step that is not noted", func(d *Dir) error { return os.Mkdir(d.file(stepFile)+".new", 0o700) },
			func(d *Dir) error { return os.Remove(d.file(stepFile) + ".new") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, inv := made(t)
			if err := tc.interrupt(d); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Rotate(StepAdd, true); err == nil {
				t.Fatal("the step is complete")
			}
			if err := tc.repair(d); err != nil {
				t.Fatal(err)
			}
			for _, step := range []Step{StepAdd, StepUse, StepRemove} {
				if _, err := d.Rotate(step, false); err != nil {
					t.Fatalf("%s: %v", step, err)
				}
			}
			for _, s := range inv.Supervisors {
				if _, err := OpenBundle(d.file(supervisors, s.ID)); err != nil {
					t.Errorf("%s: %v", s.ID, err)
				}
			}
			if _, err := pki.LoadCA(d.file(caCert), d.file(caKey)); err != nil {
				t.Error(err)
			}
			if _, err := pki.LoadIssuer(d.file(issuerCert), d.file(issuerKey), inv.Cluster); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBrokenOffUpdateIsReportedWhole: an update fails because of one machine's settings, after others have their new
// bundles. The repeated update names these too.
func TestBrokenOffUpdateIsReportedWhole(t *testing.T) {
	d, inv := made(t)
	settings := d.file(settingsDir)
	if err := errors.Join(os.Mkdir(settings, 0o755),
		os.WriteFile(filepath.Join(settings, "supervisor.yaml"), []byte("log: {level: debug}\n"), 0o600),
		os.WriteFile(filepath.Join(settings, "agent.yaml"), []byte("log: {level: loud}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Update(inv); err == nil {
		t.Fatal("a node's wrong settings are passed over")
	}
	if err := os.Remove(filepath.Join(settings, "agent.yaml")); err != nil {
		t.Fatal(err)
	}
	changed, err := d.Update(inv)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range inv.Supervisors {
		if !slices.Contains(changed, supervisors+"/"+s.ID) {
			t.Errorf("changed: %q: want %s among them", changed, s.ID)
		}
	}
	if changed, err := d.Update(inv); err != nil || len(changed) != 0 {
		t.Errorf("changed without a change: %q, %v", changed, err)
	}
}

// TestFailedInitCanBeRepeated: a value that only the programs' configurations refuse leaves nothing behind.
func TestFailedInitCanBeRepeated(t *testing.T) {
	inv := load(t)
	good := inv.Preset
	for _, there := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "hall")
		if there {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		inv.Preset = "fats"
		if err := Open(path).Init(inv); err == nil || !strings.Contains(err.Error(), "fats") {
			t.Fatalf("preset fats: %v", err)
		}
		if left, err := os.ReadDir(path); len(left) > 0 || there != (err == nil) {
			t.Errorf("left behind: %v, %v", left, err)
		}
		inv.Preset = good
		if err := Open(path).Init(inv); err != nil {
			t.Errorf("again: %v", err)
		}
	}
}

// TestInterruptedInitIsNamed: the process was killed in the middle.
func TestInterruptedInitIsNamed(t *testing.T) {
	d, inv := made(t)
	if err := os.Remove(d.file(inventoryFile)); err != nil {
		t.Fatal(err)
	}
	if err := d.Init(inv); err == nil || !strings.Contains(err.Error(), "has no inventory.yaml: if an 'init' did not end, remove") {
		t.Error(err)
	}
}

// TestInventoryWithoutNodesNeedsNoDims: all nodes join later.
func TestInventoryWithoutNodesNeedsNoDims(t *testing.T) {
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(file, []byte("cluster: hall7\nsupervisors: [{id: s1, address: 10.0.0.1}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if inv, err := Load(file); err != nil || inv.Dims != "0x0x0" {
		t.Errorf("dims %q, %v", inv.Dims, err)
	}
}

// TestInstalledDirectoriesAreReadable: the service runs as its own user, and the administrator may have a strict umask.
func TestInstalledDirectoriesAreReadable(t *testing.T) {
	d, _ := made(t)
	b, err := OpenBundle(d.file("nodes", "n0-0-0"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	defer syscall.Umask(syscall.Umask(0o077))
	if err := b.Install(root, -1, -1, ConfigSafe); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Join(root, Etc, "pki"); dir != root; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v: want 0755", dir, info.Mode(), err)
		}
	}
}

func TestJoinInstallsBundle(t *testing.T) {
	d, _ := made(t)
	root := t.TempDir()
	b, err := OpenBundle(d.file("nodes", "n0-0-0"))
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := b.Missing(); err != nil || len(missing) != 1 {
		t.Errorf("the example's address is this machine's: %v, %v", missing, err)
	}
	if err := b.Install(root, -1, -1, ConfigSafe); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gossip.key", "pki/host.key", "pki/dnp.key"} {
		if st, err := os.Stat(filepath.Join(root, Etc, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if err := b.Install(root, -1, -1, ConfigSafe); err != nil {
		t.Errorf("again: %v", err)
	}
	s, err := OpenBundle(d.file("supervisors", "s1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Install(root, -1, -1, ConfigSafe); err != nil {
		t.Errorf("a replica beside a node: %v", err)
	}
	other, err := OpenBundle(d.file("nodes", "n1-0-0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Install(root, -1, -1, ConfigSafe); err == nil || !strings.Contains(err.Error(), "is that of n0-0-0") {
		t.Errorf("another node in the place of one: %v", err)
	}
	// Bundles that must not get as far.
	for name, spoil := range map[string]func() error{
		"is that of": func() error {
			from, to := d.file("nodes", "n1-0-0", "pki"), d.file("nodes", "n0-0-0", "pki")
			for _, f := range []string{"host.pem", "host.key"} {
				if err := os.WriteFile(filepath.Join(to, f), read(t, filepath.Join(from, f)), 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		"gossip key":    func() error { return os.Remove(d.file("nodes", "n0-1-0", "gossip.key")) },
		"neither agent": func() error { return os.Remove(d.file("nodes", "n0-0-1", "agent.yaml")) },
		"CA certificates": func() error {
			return os.WriteFile(d.file("nodes", "n1-1-0", "pki", "ca.pem"), nil, 0o600)
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		id := map[string]string{"is that of": "n0-0-0", "gossip key": "n0-1-0", "neither agent": "n0-0-1", "CA certificates": "n1-1-0"}[name]
		if _, err := OpenBundle(d.file("nodes", id)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v: want %q", id, err, name)
		}
	}
}

func FuzzLoad(f *testing.F) {
	b, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "inventory.yaml")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		inv, err := Load(path)
		if err != nil {
			return
		}
		if _, err := inv.Layout(); err != nil {
			t.Errorf("validated, and then: %v", err)
		}
	})
}

// TestSpellingOfAddressIsKept: the replicas' etcd members compare the text of their addresses.
func TestSpellingOfAddressIsKept(t *testing.T) {
	inv := load(t)
	inv.Supervisors[0].Address = "FD00:0::1"
	l, err := inv.Layout()
	if err != nil || l.Supervisors[0].EtcdPeer != "[FD00:0::1]:2380" {
		t.Errorf("etcd peer %q, %v: want the address as in the inventory", l.Supervisors[0].EtcdPeer, err)
	}
}
