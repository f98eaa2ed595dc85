package cluster

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func dims(t *testing.T, s string) grid.Dims {
	t.Helper()
	d, err := grid.ParseDims(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func create(t *testing.T, o Options) *Cluster {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(shortTempDir(t), "c")
	}
	c, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.ports.release() })
	return c
}

// TestDirectoryThatOthersCanChangeIsRefused: neither a load nor a new cluster, not even by force, relies on a directory if another user
// owns or can write it, its path, or one of its files.
func TestDirectoryThatOthersCanChangeIsRefused(t *testing.T) {
	parent := shortTempDir(t)
	dir := filepath.Join(parent, "c")
	o := Options{Dims: dims(t, "2"), Supervisors: 1, Dir: dir}
	c := create(t, o)
	if _, err := Load(dir); err != nil {
		t.Fatal(err)
	}
	o.Force = true
	for _, place := range []string{"..", ".", "cluster.json", "pki", "pki/operator.key", "nodes", "nodes/" + string(c.info.Nodes[0].ID),
		"nodes/" + string(c.info.Nodes[0].ID) + "/agent.yaml", "supervisors/sup-0/supervisor.yaml"} {
		place := filepath.Join(dir, place)
		was, err := os.Stat(place)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(how, want string) {
			t.Helper()
			if _, err := Load(dir); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), place+": "+want) {
				t.Errorf("%s %s: load: %v", place, how, err)
			}
			if _, err := Create(o); !errors.Is(err, ErrForeign) {
				t.Errorf("%s %s: create by force: %v", place, how, err)
			}
		}
		if err := os.Chmod(place, was.Mode()|0o002); err != nil {
			t.Fatal(err)
		}
		refused("is writable", "given ")
		if err := os.Chmod(place, was.Mode()); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 { // only root may give files away
			continue
		}
		if err := os.Lchown(place, 65534, -1); err != nil {
			t.Fatal(err)
		}
		refused("is another user's", "it belongs to user 65534")
		if err := os.Lchown(place, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); err != nil {
		t.Error(err)
	}
}

// shortTempDir is t.TempDir without the test's name: Unix sockets' names are short.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lofamo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestCreateWritesValidConfigurations reads the configurations back as the programs do, and checks that the two ends of
// every cable agree and that no address is used twice.
func TestCreateWritesValidConfigurations(t *testing.T) {
	for _, tc := range []struct {
		dims        string
		supervisors int
		links       int
	}{{"1x1x2", 1, 2}, {"2x2x2", 3, 6}, {"3x3x3", 5, 6}, {"4", 3, 2}, {"2x3", 3, 4}} {
		t.Run(tc.dims, func(t *testing.T) {
			c := create(t, Options{Dims: dims(t, tc.dims), Supervisors: tc.supervisors, Preset: config.PresetFast, ServiceInterfaces: 2})
			used := map[string]string{}
			claim := func(what, addr string) {
				if other, ok := used[addr]; ok {
					t.Errorf("%s and %s both have %s", what, other, addr)
				}
				used[addr] = what
			}
			ends := map[string]config.LinkAddr{}
			for _, n := range c.info.Nodes {
				a, err := config.LoadAgent(filepath.Join(c.nodeDir(n.ID), "agent.yaml"), nil)
				if err != nil {
					t.Fatal(err)
				}
				linked := 0
				for _, l := range a.Links {
					if l.Peer != "" {
						linked++
					}
				}
				if len(a.Links) != grid.NumDirections || linked != tc.links || !a.Injection || a.Preset != config.PresetFast ||
					len(a.Supervisors) != tc.supervisors {
					t.Errorf("node %s: %d ends, %d links, injection %v, preset %s, %d supervisors", n.ID, len(a.Links), linked, a.Injection, a.Preset,
						len(a.Supervisors))
				}
				claim("service of "+string(n.ID), a.Service.Listen)
				claim("gossip of "+string(n.ID), a.Service.GossipListen)
				claim("metrics of "+string(n.ID), a.HTTP)
				if len(a.Service.Alternates) != 1 || !strings.HasPrefix(a.Service.Alternates[0].Listen, "127.0.0.2:") || a.Service.SpoolBytes == 0 {
					t.Errorf("node %s: service interfaces %v, spool %d", n.ID, a.Service.Interfaces(), a.Service.SpoolBytes)
				}
				claim("second service of "+string(n.ID), a.Service.Alternates[0].Listen)
				for d, l := range a.Links {
					claim(string(n.ID)+" "+d, l.Local)
					ends[l.Local] = l
				}
				if _, err := pki.LoadSigner(a.TLS.HostCert, a.TLS.HostKey); err != nil {
					t.Error(err)
				}
				if _, err := pki.LoadSigner(a.TLS.DNPCert, a.TLS.DNPKey); err != nil {
					t.Error(err)
				}
			}
			for local, l := range ends {
				if back, ok := ends[l.Peer]; l.Peer != "" && (!ok || back.Peer != local) {
					t.Errorf("link %s goes to %s, whose own peer is %q", local, l.Peer, back.Peer)
				}
			}
			for _, s := range c.info.Supervisors {
				cfg, err := config.LoadSupervisor(filepath.Join(c.dir, "supervisors", s.ID, "supervisor.yaml"), nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(cfg.Nodes) != c.dims.Nodes() || len(cfg.Replicas) != tc.supervisors || !cfg.LocalPID {
					t.Errorf("supervisor %s: %d nodes, %d replicas, pid shown %v", s.ID, len(cfg.Nodes), len(cfg.Replicas), cfg.LocalPID)
				}
				for _, addr := range append([]string{cfg.GRPC, cfg.HTTP, cfg.Report, cfg.GossipListen}, cfg.ReportAlternates...) {
					claim(s.ID, addr)
				}
				claim(s.ID, strings.TrimPrefix(cfg.Etcd.PeerURL, "https://"))
				claim(s.ID, strings.TrimPrefix(cfg.Etcd.ClientURL, "https://"))
			}
			if p, err := c.Periods(); err != nil || p.TWrite != 8*time.Millisecond {
				t.Errorf("periods: %v, %v", p.TWrite, err)
			}
			for addr := range used {
				if _, err := net.Listen("tcp", addr); err == nil {
					t.Errorf("%s is not held until the start", addr)
				}
			}
		})
	}
}

// Spares have ends of their own, no place and no peers, and every supervisor knows them.
func TestSparesHaveNoPlace(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2x2x1"), Supervisors: 1, Spares: 2})
	locals := map[string]bool{}
	for i, n := range c.Info().All() {
		a, err := config.LoadAgent(filepath.Join(c.nodeDir(n.ID), "agent.yaml"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if spare := i >= 4; a.Spare != spare || (a.Coord == "") != spare || len(a.Links) != grid.NumDirections {
			t.Errorf("node %s: spare %t at %q with %d links", n.ID, a.Spare, a.Coord, len(a.Links))
		}
		for d, l := range a.Links {
			if locals[l.Local] || (a.Spare || strings.HasPrefix(d, "Z")) != (l.Peer == "" && l.PeerNode == "") {
				t.Errorf("node %s: link %s: %+v", n.ID, d, l)
			}
			locals[l.Local] = true
		}
		if _, err := pki.LoadSigner(a.TLS.DNPCert, a.TLS.DNPKey); err != nil {
			t.Error(err)
		}
	}
	s, err := config.LoadSupervisor(c.supervisorConfig("sup-0"), nil)
	if err != nil || len(s.Nodes) != 4 || len(s.Spares) != 2 || s.Spares[1].ID != "spare-1" || s.Spares[1].Service == "" {
		t.Errorf("the supervisor knows the spares %+v, %v", s.Spares, err)
	}
	if n, err := c.Node("spare-1"); err != nil || n.Coord != "" {
		t.Errorf("%+v, %v", n, err)
	}
	for _, o := range []Options{{Spares: -1}, {Spares: 1, Regions: 2}} {
		o.Dir, o.Dims = filepath.Join(shortTempDir(t), "c"), dims(t, "2x2x1")
		if _, err := Create(o); err == nil || !strings.Contains(err.Error(), "spares: given") {
			t.Errorf("%d spares, %d regions: %v", o.Spares, o.Regions, err)
		}
	}
}

func TestCreateRefusesInvalidOptions(t *testing.T) {
	full := shortTempDir(t)
	if err := os.WriteFile(filepath.Join(full, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d := dims(t, "2")
	for _, tc := range []struct {
		name string
		o    Options
		want []string
	}{
		{"even supervisors", Options{Dir: "x", Dims: d, Supervisors: 2}, []string{"supervisors: given 2", "1, 3 or 5"}},
		{"preset", Options{Dir: "x", Dims: d, Preset: "warp"}, []string{`"warp"`, "default, fast, relaxed"}},
		{"no dims", Options{Dir: "x"}, []string{"dims 0x0x0", "1 to 65536"}},
		{"one node", Options{Dir: "x", Dims: dims(t, "1")}, []string{"1x1x1", "want 2 to 1000"}},
		{"too many nodes", Options{Dir: "x", Dims: dims(t, "11x11x11")}, []string{"1331 nodes", "want 2 to 1000"}},
		{"no directory", Options{Dims: d}, []string{"dir: none given"}},
		{"interfaces", Options{Dir: "x", Dims: d, ServiceInterfaces: 3}, []string{"service interfaces: given 3", "1 to 2"}},
		{"all at once", Options{Supervisors: 4, Preset: "warp"}, []string{"dir:", "dims", "supervisors", "preset"}},
		{"long path", Options{Dir: "/tmp/" + strings.Repeat("a", 90), Dims: d}, []string{"given 95 bytes", "Unix sockets"}},
		{"foreign directory", Options{Dir: full, Dims: d}, []string{"thesis.tex", "empty or a new one"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Create(tc.o)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
	if entries, _ := os.ReadDir(full); len(entries) != 2 { // and .lock
		t.Errorf("the foreign directory now holds %v", entries)
	}
}

// TestForceIsNoRemedyForUnreadableFile: a new cluster replaces a file that describes no cluster. It does not mend one that cannot be read.
func TestForceIsNoRemedyForUnreadableFile(t *testing.T) {
	for name, tc := range map[string]struct {
		make   func(path string) error
		remedy bool
	}{
		"describes no cluster": {func(path string) error { return os.WriteFile(path, []byte("{}"), 0o600) }, true},
		"is no JSON":           {func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) }, true},
		"cannot be read":       {func(path string) error { return os.Mkdir(path, 0o700) }, false},
	} {
		dir := shortTempDir(t)
		if err := tc.make(filepath.Join(dir, "cluster.json")); err != nil {
			t.Fatal(err)
		}
		_, err := Create(Options{Dims: dims(t, "2"), Supervisors: 1, Dir: dir})
		if err == nil || strings.Contains(err.Error(), "--force-new") != tc.remedy || !strings.Contains(err.Error(), "cluster.json") {
			t.Errorf("%s: %v: --force-new as its remedy: want %v", name, err, tc.remedy)
		}
	}
}

func TestStoppedClusterIsReplacedOnlyByForce(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	o := Options{Dir: c.dir, Dims: dims(t, "3"), Supervisors: 1}
	if _, err := Create(o); err == nil || !strings.Contains(err.Error(), "--force-new") {
		t.Fatalf("a second Create: %v", err)
	}
	o.Force = true
	if again := create(t, o); len(again.info.Nodes) != 3 {
		t.Fatalf("%d nodes", len(again.info.Nodes))
	}
	// Even by force, a running one is left alone.
	loaded, err := Load(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	loaded.info.Nodes[0].RunPID, loaded.info.Nodes[0].Started = self.pid, self.started
	if err := loaded.save(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(o); err == nil || !strings.Contains(err.Error(), "one is running there") {
		t.Fatalf("Create over a running cluster: %v", err)
	}
	if err := loaded.Purge(); err == nil || !strings.Contains(err.Error(), "it is running") {
		t.Fatalf("Purge of a running cluster: %v", err)
	}
}

func TestUnfinishedClusterIsMadeAgain(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.info.Complete = false
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	create(t, Options{Dir: c.dir, Dims: dims(t, "2"), Supervisors: 1})
}

func TestPurgeLeavesStrangersFiles(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	notes := filepath.Join(c.dir, "notes.txt")
	if err := os.WriteFile(notes, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Purge(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "notes.txt" {
		t.Fatalf("left: %v, %v", entries, err)
	}
	if err := os.Remove(notes); err != nil {
		t.Fatal(err)
	}
	if err := c.Purge(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Fatalf("the directory is still there: %v", err)
	}
}

func TestLoadRefusesDamagedCluster(t *testing.T) {
	dir := shortTempDir(t)
	if _, err := Load(dir); !errors.Is(err, ErrNoCluster) || !strings.Contains(err.Error(), "cluster.json") {
		t.Errorf("an empty directory: %v", err)
	}
	for content, want := range map[string]string{
		"{":             "unexpected end",
		`{"version":7}`: "version 7",
		`{"version":1}`: "dims",
	} {
		if err := os.WriteFile(filepath.Join(dir, "cluster.json"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", content, err, want)
		}
	}
}

func TestNodeByNameAndCoordinates(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2x2x2"), Supervisors: 1})
	for in, want := range map[string]string{"n1-0-1": "n1-0-1", "1,0,1": "n1-0-1", "1": "n1-0-0", "0,1": "n0-1-0"} {
		if n, err := c.Node(in); err != nil || string(n.ID) != want {
			t.Errorf("Node(%q) = %s, %v", in, n.ID, err)
		}
	}
	for in, want := range map[string]string{"n9-9-9": "neither the id", "2,0,0": "outside the 2x2x2 torus", "": "neither"} {
		if _, err := c.Node(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Node(%q): %v, want %q", in, err, want)
		}
	}
}

func TestTwoClustersAtOnceHaveDistinctPorts(t *testing.T) {
	a := create(t, Options{Dims: dims(t, "2x2"), Supervisors: 1})
	b := create(t, Options{Dims: dims(t, "2x2"), Supervisors: 1})
	// Even while neither is bound, as between the release and the programs' own binding.
	a.ports.unbind()
	b.ports.unbind()
	for range 20 {
		p, err := reservePorts(60)
		if err != nil {
			t.Fatal(err)
		}
		if overlap(p, a.ports) || overlap(p, b.ports) {
			t.Fatal("a block was given twice")
		}
		p.release()
	}
	if overlap(a.ports, b.ports) {
		t.Fatal("the clusters share ports")
	}
}

func overlap(a, b *portBlock) bool {
	// next has moved to the end in a used block; claims have all ports.
	for _, x := range a.claims {
		for _, y := range b.claims {
			if x.Addr().String() == y.Addr().String() {
				return true
			}
		}
	}
	return false
}

func TestNestedClusterIsNoHarm(t *testing.T) {
	outer := shortTempDir(t)
	create(t, Options{Dir: filepath.Join(outer, "demo"), Dims: dims(t, "2"), Supervisors: 1})
	create(t, Options{Dir: outer, Dims: dims(t, "2"), Supervisors: 1})
}

func TestOneAtATimeInDirectory(t *testing.T) {
	dir := shortTempDir(t)
	unlock, err := lockDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(Options{Dir: dir, Dims: dims(t, "2"), Supervisors: 1}); err == nil ||
		!strings.Contains(err.Error(), "another program is starting, stopping or changing") {
		t.Errorf("Create in a locked directory: %v", err)
	}
	// A waiting caller gets it when the other one is done.
	time.AfterFunc(50*time.Millisecond, unlock)
	again, err := lockDir(dir, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestChildrenGetNoProgramVariables(t *testing.T) {
	got := environment([]string{"PATH=/bin", "LOFAMO_AGENT_NODE=a", "NOTIFY_SOCKET=/run/x", "WATCHDOG_USEC=1", "LOFAMO_SUPERVISOR_NAME=b",
		"LOFAMO_DIR=c"})
	if want := []string{"PATH=/bin", "LOFAMO_DIR=c"}; !slices.Equal(got, want) {
		t.Errorf("%q: want %q", got, want)
	}
}

// A process that was started while the lock was held has its file until it executes. The lock ends all the same.
func TestLockEndsBesideChild(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var child int
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == filepath.Join(dir, ".lock") {
			n, err := strconv.Atoi(fd.Name())
			if err != nil {
				t.Fatal(err)
			}
			if child, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if child == 0 {
		t.Fatal("the lock's file is not open")
	}
	defer func() { _ = unix.Close(child) }()
	unlock()
	again, err := lockDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// TestLoadRefusesImpossibleContent: other methods take the nodes of the torus, one supervisor and plain names for granted.
func TestLoadRefusesImpossibleContent(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	c.ports.release()
	for _, tc := range []struct {
		change func(*Info)
		want   string
	}{
		{func(i *Info) { i.Nodes = nil }, "nodes: given 0: want 2"},
		{func(i *Info) { i.Nodes = i.Nodes[:1] }, "nodes: given 1: want 2"},
		{func(i *Info) { i.Supervisors = nil }, "supervisors: given 0: want at least 1"},
		{func(i *Info) { i.Nodes[1].ID = "../../home" }, `"../../home"`},
		{func(i *Info) { i.Spares = []NodeInfo{{ID: ".."}} }, `".."`},
		{func(i *Info) { i.Supervisors[0].ID = "" }, `""`},
		{func(i *Info) { i.Regions = -1 }, "regions: given -1"},
	} {
		b, err := json.Marshal(c.info)
		if err != nil {
			t.Fatal(err)
		}
		var info Info
		if err := json.Unmarshal(b, &info); err != nil {
			t.Fatal(err)
		}
		tc.change(&info)
		if b, err = json.Marshal(info); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.path("cluster.json"), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(c.dir); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("error %v: want %q", err, tc.want)
		}
	}
}

func TestPlacedNodesAreThoseWithPlacesNow(t *testing.T) {
	i := Info{Nodes: []NodeInfo{{ID: "a", Coord: "0,0,0"}, {ID: "b", Coord: "1,0,0", Left: true}},
		Spares: []NodeInfo{{ID: "c"}, {ID: "d", Joined: true}, {ID: "e", Joined: true}}}
	var got []fault.NodeID
	for _, n := range i.Placed() {
		got = append(got, n.ID)
	}
	if want := []fault.NodeID{"a", "d", "e"}; !slices.Equal(got, want) {
		t.Errorf("%v have places, want %v", got, want)
	}
}
