package config

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func goodAgent(t *testing.T) Agent {
	t.Helper()
	a, err := LoadAgent("testdata/agent.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func goodSupervisor(t *testing.T) Supervisor {
	t.Helper()
	s, err := LoadSupervisor("testdata/supervisor.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestExampleConfigurationsAreValid(t *testing.T) {
	a := goodAgent(t)
	p, err := a.Timing()
	if err != nil || p.TWrite != 20*ms || p.TRead != 40*ms || p.LinkSickRatio != 0.02 || p.LinkPeriod != 25*ms {
		t.Errorf("timing %+v, %v", p, err)
	}
	if a.Sensors.Procfs != "/proc" || a.Sensors.Memory.OOMHold.D() != 5*time.Minute || *a.Sensors.Temperature.WarnHigh != 80 {
		t.Errorf("sensors %+v: defaults and file are to be one", a.Sensors)
	}
	c, d, err := a.Topology()
	if err != nil || c != (grid.Coord{X: 1}) || d != (grid.Dims{X: 2, Y: 2, Z: 1}) {
		t.Errorf("%v, %v, %v", c, d, err)
	}
	r := goodSupervisor(t).Responses
	if l := r.Limits([]string{"rack"}); !r.Enabled || l.MaxNodes != 10 || l.MaxPercent != 5 || l.Grace != time.Minute ||
		l.LookAgain != 10*time.Second || l.Validate() != nil ||
		r.Executors.Process.Address != "10.0.0.9:7010" || r.Executors.Webhooks != nil {
		t.Errorf("responses %+v: defaults and file are to be one", r)
	}
	for dir, want := range map[grid.Direction]fault.NodeID{grid.XPlus: "n0-0-0", grid.YPlus: "n1-1-0", grid.ZPlus: ""} {
		if id, ok := a.PeerNode(dir); id != want || ok != (want != "") {
			t.Errorf("peer in %s is %q, %t: want %q", dir, id, ok, want)
		}
	}
	s := goodSupervisor(t)
	dims, ids, err := s.Topology()
	if err != nil || dims.Nodes() != 2 || ids[grid.Coord{}] != "n0-0-0" || ids[grid.Coord{X: 1}] != "worker-b" {
		t.Errorf("%v, %v, %v", dims, ids, err)
	}
	if x := s.Spares[0]; s.Nodes[1].Labels["rack"] != "r1" || x.Labels["rack"] != "r1" ||
		!reflect.DeepEqual(x.Services(), []string{"10.0.0.9:7000"}) ||
		(SpareEntry{}).Services() != nil || !reflect.DeepEqual(s.DomainLabels, []string{"rack", "power"}) ||
		len(DefaultSupervisor().DomainLabels) != 3 {
		t.Errorf("%+v, %v", s.Spares, s.DomainLabels)
	}
	if got, err := DefaultSupervisor().Allowed(); err != nil || len(got) != 6 {
		t.Errorf("allowed checksums by default: %v, %v", got, err)
	}
	if s.Reports()[1] != "10.1.0.100:7001" || s.Nodes[1].Services()[1] != "10.1.0.2:7000" {
		t.Errorf("%v, %v", s.Reports(), s.Nodes[1].Services())
	}
	if s.Etcd.Name != "s0" || !s.Embedded() || s.Etcd.CompactionRetention.D() != 2*time.Hour {
		t.Errorf("etcd %+v", s.Etcd)
	}
}

// TestServiceInterfacesAreNumbered: how interfaces are numbered and named, and which address each has of a
// supervisor.
func TestServiceInterfacesAreNumbered(t *testing.T) {
	a := goodAgent(t)
	if got := a.Service.Interfaces(); len(got) != 2 || got[0] != (ServiceAddr{"10.0.0.1:7000", "eth0"}) ||
		got[1] != (ServiceAddr{"10.8.0.1:7000", "eth2"}) {
		t.Errorf("interfaces %v", got)
	}
	for _, tc := range []struct{ names, want []string }{
		{[]string{""}, []string{"service"}},
		{[]string{"", ""}, []string{"service", "service-1"}},
		{[]string{"eth0", "", "eth0", "eth0"}, []string{"eth0", "service", "eth0-2", "eth0-3"}},
	} {
		s := ServiceConfig{Interface: tc.names[0]}
		for _, n := range tc.names[1:] {
			s.Alternates = append(s.Alternates, ServiceAddr{Interface: n})
		}
		if got := s.InterfaceNames(); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%q are called %q, want %q", tc.names, got, tc.want)
		}
	}
	for i, want := range [][]string{{"10.0.0.100:7001", "10.8.0.100:7001", "10.8.0.100:7001"}, {"10.0.0.101:7001", "10.0.0.101:7001"}} {
		for k, addr := range want {
			if got := a.Supervisors[i].Addr(k); got != addr {
				t.Errorf("interface %d reaches %s at %s, want %s", k, a.Supervisors[i].ID, got, addr)
			}
		}
	}
	sums, err := a.Service.Offered()
	if err != nil || !reflect.DeepEqual(sums, []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_XXHASH64, lofamov1.Checksum_CHECKSUM_CRC32C}) {
		t.Errorf("checksums %v, %v", sums, err)
	}
	if _, err := (ServiceConfig{Checksums: []string{"md5"}}).Offered(); err == nil {
		t.Error("md5 is offered")
	}
}

// TestWriteAndRead: Load reads the same configuration that Marshal writes.
func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	a, s := goodAgent(t), goodSupervisor(t)
	for name, marshal := range map[string]func() ([]byte, error){
		"agent.yaml":      func() ([]byte, error) { return marshal(a) },
		"supervisor.yaml": func() ([]byte, error) { return MarshalSupervisor(s) },
	} {
		b, err := marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a2, err := LoadAgent(filepath.Join(dir, "agent.yaml"), nil)
	if err != nil || !reflect.DeepEqual(a, a2) {
		t.Errorf("agent: %v\nwritten %+v\nread    %+v", err, a, a2)
	}
	s2, err := LoadSupervisor(filepath.Join(dir, "supervisor.yaml"), nil)
	if err != nil || !reflect.DeepEqual(s, s2) {
		t.Errorf("supervisor: %v\nwritten %+v\nread    %+v", err, s, s2)
	}
}

func TestUnknownKeyIsRefusedWithSuggestions(t *testing.T) {
	for _, tc := range []struct{ yaml, names string }{
		{"clusterr: x", "clusterr: unknown key: want one of checkMemory, cluster, coord, dims"},
		{"periods: {tWirte: 5ms}", "periods.tWirte: unknown key: want one of ackTimeout"},
		{"links: {X+: {lokal: a}}", "links.X+.lokal: unknown key: want one of interface, local, peer, peerNode"},
		{"supervisors: [{id: a}, {it: b}]", "supervisors[1].it: unknown key"},
		{"Cluster: x", "Cluster: unknown key"},
		{"tls: {CA: x}", "tls.CA: unknown key"},
		{"sensors: {peripherals: [{}, {}, {}]}", "sensors.peripherals: given 3 entries: want at most 2"},
		{"cluster: a\ncluster: b", "already set in map"},
		{"cluster: a\n---\ncluster: b", "2 YAML documents: want one"},
		{"cluster:", "cluster: given nothing"},
		{"mtu: big", "mtu: given a string: want a whole number"},
		{"mtu: 1.5", "mtu: given a number 1.5: want a whole number"},
		{"service: here", "service: given a string: want a mapping"},
		{"supervisors: {a: b}", "supervisors: given a mapping: want a list"},
		{"injection: 3", "injection: given a number: want a bool: true or false"},
		{"periods: {tRead: 50}", "duration 50: want a string with a unit"},
		{"periods: {tRead: soon}", `duration "soon": want a number with a unit`},
		{"- a\n- b", "given a list: want a mapping"},
		{"{", "not YAML"},
		{"\x00", "not YAML"},
	} {
		path := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(path, []byte(tc.yaml), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := ReadAgent(path, nil)
		if err == nil || !strings.Contains(err.Error(), tc.names) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: error %v: want one with %q and the file", tc.yaml, err, tc.names)
		}
	}
	if _, err := ReadAgent("/no/such.yaml", nil); err == nil || !strings.Contains(err.Error(), "/no/such.yaml") {
		t.Errorf("%v", err)
	}
	var a Agent
	for _, empty := range []string{"", "# only a comment\n", "---\n", "--- # x\n---\n"} {
		if err := decode([]byte(empty), &a); err != nil && !strings.Contains(empty, "x") {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

func TestEnvironmentOverridesFile(t *testing.T) {
	a, err := ReadAgent("testdata/agent.yaml", []string{
		"PATH=/bin", "LOFAMO_AGENT_STATEDIR=/tmp/x=y", "LOFAMO_AGENT_SERVICE_LISTEN=10.9.9.9:1", "LOFAMO_AGENT_MTU=1400",
		"LOFAMO_AGENT_SERVICE_GOSSIPJOIN=10.0.0.1:1, 10.0.0.2:2,", "LOFAMO_AGENT_SERVICE_SPOOLBYTES=0",
		"LOFAMO_AGENT_SERVICE_CHECKSUMS=sum64", "LOFAMO_AGENT_NODE=other", "LOFAMO_DIR=/elsewhere",
		"LOFAMO_AGENT_SERVICE_HOST=10.1.1.1", "LOFAMO_AGENT_SERVICE_PORT=1", "LOFAMO_AGENT_PORT_9100_TCP=tcp://10.1.1.1:1", // Kubernetes
	})
	if err != nil {
		t.Fatal(err)
	}
	if a.StateDir != "/tmp/x=y" || a.Service.Listen != "10.9.9.9:1" || a.MTU != 1400 || a.Node != "other" ||
		a.Service.SpoolBytes != 0 || !reflect.DeepEqual(a.Service.Checksums, []string{"sum64"}) ||
		!reflect.DeepEqual(a.Service.GossipJoin, []string{"10.0.0.1:1", "10.0.0.2:2"}) {
		t.Errorf("%+v", a)
	}
	_, err = ReadAgent("testdata/agent.yaml", []string{"LOFAMO_AGENT_MTU=big", "LOFAMO_AGENT_STATE_DIR=/x"})
	for _, names := range []string{`environment LOFAMO_AGENT_MTU: given "big": want a whole number`,
		"environment LOFAMO_AGENT_STATE_DIR: unknown: want LOFAMO_AGENT_ and one of"} {
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("error %v: want one with %q", err, names)
		}
	}
	s, err := ReadSupervisor("testdata/supervisor.yaml",
		[]string{"LOFAMO_SUPERVISOR_DATADIR=/data", "LOFAMO_SUPERVISOR_ETCD_ENDPOINTS=https://e:2379"})
	if err != nil || s.DataDir != "/data" || s.Embedded() {
		t.Errorf("%+v, %v", s, err)
	}
	// No file: everything from the environment.
	if a, err := ReadAgent("", []string{"LOFAMO_AGENT_COORD=1,1,0", "LOFAMO_AGENT_DIMS=2x2"}); err != nil || a.Node != "n1-1-0" {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestEveryVariableSetsItsField checks that every variable names a field by its place in the file and sets
// that field.
func TestEveryVariableSetsItsField(t *testing.T) {
	check := func(names []string, prefix string, typ reflect.Type) {
		places := map[string]bool{}
		var walk func(t reflect.Type, at string)
		walk = func(t reflect.Type, at string) {
			for name, ft := range jsonFields(t) {
				place := at + strings.ToUpper(name)
				places[place] = true
				if ft.Kind() == reflect.Struct {
					walk(ft, place+"_")
				}
			}
		}
		walk(typ, "")
		for _, n := range names {
			if !places[strings.TrimPrefix(n, prefix)] {
				t.Errorf("%s names no field", n)
			}
		}
	}
	check(AgentEnv(), "LOFAMO_AGENT_", reflect.TypeFor[Agent]())
	check(SupervisorEnv(), "LOFAMO_SUPERVISOR_", reflect.TypeFor[Supervisor]())
	var environ []string
	for _, n := range SupervisorEnv() {
		environ = append(environ, n+"="+n)
	}
	s, err := ReadSupervisor("", environ)
	if err != nil {
		t.Fatal(err)
	}
	b, err := MarshalSupervisor(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range SupervisorEnv() {
		if !strings.Contains(string(b), n) {
			t.Errorf("%s sets nothing", n)
		}
	}
}

func TestAgentValidationNamesField(t *testing.T) {
	for _, tc := range []struct {
		change func(*Agent)
		names  string
	}{
		{func(a *Agent) { a.Cluster = "" }, "cluster: given nothing: want 1 to 63 of a-z"},
		{func(a *Agent) { a.Cluster = "C1" }, "cluster: given C1"},
		{func(a *Agent) { a.Node = "a/b" }, "node: given a/b: want 1 to 63 letters"},
		{func(a *Agent) { a.Coord = "2,0,0" }, "coord: coordinate 2,0,0: outside the 2x2x1 torus: want 0,0,0 to 1,1,0"},
		{func(a *Agent) { a.Coord = "x" }, `coord: coordinate "x"`},
		{func(a *Agent) { a.Spare = true }, "coord: given 1,0,0: want nothing: a spare learns its place"},
		{func(a *Agent) { a.Spare, a.Coord = true, "" }, "links.X+.peer: given 10.0.1.0:7101: want nothing: a spare learns its peers"},
		{func(a *Agent) { a.Spare, a.Coord, a.Node = true, "", "" }, "node: given nothing"},
		{func(a *Agent) { a.Dims = "0x2" }, "dims: dims 0x2x1: size of X is 0: want 1 to 65536"},
		{func(a *Agent) { a.Dims = "" }, `dims: dims ""`},
		{func(a *Agent) { a.DiskWarnBytes = -1 }, "diskWarnBytes: given -1: want 0 to 1099511627776"},
		{func(a *Agent) { a.StateDir = "" }, `stateDir: given "": want a directory's path of 1 to 90 bytes`},
		{func(a *Agent) { a.StateDir = "/" + strings.Repeat("x", 90) }, "stateDir: given"},
		{func(a *Agent) { a.Platform = "laptop" }, "platform: given laptop: want one of shared-kernel, dpu"},
		{func(a *Agent) { a.Preset = "swift" }, `preset: given "swift": want one of default, fast, relaxed`},
		{func(a *Agent) { d := Duration(50 * ms); a.Periods.TWrite = &d }, "periods.tWrite: given 50ms: want less than periods.tRead (40ms)"},
		{func(a *Agent) { a.TLS.DNPKey = "" }, "tls.dnpKey: given nothing: want the path of a file"},
		{func(a *Agent) { delete(a.Links, "Y-") }, "links.Y-: given nothing: want a link: this node of the 2x2x1 torus has one"},
		{func(a *Agent) { a.Links["Z+"] = a.Links["X+"] }, "links.Z+: given a link: want none: the 2x2x1 torus has size 1 in that dimension"},
		{func(a *Agent) { a.Links["W+"] = a.Links["X+"] }, `links.W+: direction "W+": want one of X+ X- Y+ Y- Z+ Z-`},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.Local = "here:1" }) }, `links.X+.local: given here:1: want "ip:port"`},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.Local = "10.0.0.1:0" }) }, "links.X+.local: given 10.0.0.1:0"},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.Local = "10.0.1.1:7101" }) },
			"links.X-.local: given 10.0.1.1:7101: want an address other than that of links.X+.local"},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.Local = a.Service.Listen }) },
			"links.X+.local: given 10.0.0.1:7000: want an address other than that of service.listen"},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.Peer = "0.0.0.0:1" }) },
			"links.X+.peer: given 0.0.0.0:1: want the address of one host"},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.Peer = "" }) }, "links.X+.peer: given nothing"},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.PeerNode = "a b" }) }, "links.X+.peerNode: given a b"},
		{func(a *Agent) { a.link("X+", func(l *LinkAddr) { l.Interface = "a/b" }) }, "links.X+.interface: given a/b"},
		{func(a *Agent) { a.MTU = 1000 }, "mtu: given 1000: want 1280 to 8224 bytes"},
		{func(a *Agent) { a.MTU = 9000 }, "mtu: given 9000"},
		{func(a *Agent) { a.MaxHops = 256 }, "maxHops: given 256: want 1 to 255, or 0 for the number that the torus needs"},
		{func(a *Agent) { a.Routing = "magic" }, "routing: given magic: want one of chaos, minimal-adaptive, dimension-order"},
		{func(a *Agent) { a.Service.Listen = "" }, "service.listen: given nothing"},
		{func(a *Agent) { a.Service.GossipListen = "x" }, "service.gossipListen: given x"},
		{func(a *Agent) { a.Service.GossipKeyFile = "" }, "service.gossipKeyFile: given nothing"},
		{func(a *Agent) { a.Service.GossipJoin[1] = "host:1" }, "service.gossipJoin[1]: given host:1"},
		{func(a *Agent) { a.Service.Interface = "averyverylongname" }, "service.interface: given averyverylongname"},
		{func(a *Agent) { a.Service.Alternates[0].Listen = "" }, "service.alternates[0].listen: given nothing"},
		{func(a *Agent) { a.Service.Alternates[0].Listen = a.Service.Listen },
			"service.alternates[0].listen: given 10.0.0.1:7000: want an address other than that of service.listen"},
		{func(a *Agent) { a.Service.Alternates[0].Interface = "a b" }, "service.alternates[0].interface: given a b"},
		{func(a *Agent) { a.Service.Alternates = make([]ServiceAddr, 8) }, "service.alternates: given 8: want at most 7"},
		{func(a *Agent) { a.Service.SpoolBytes = -1 }, "service.spoolBytes: given -1: want 0 (no spool), or 131072 to 67108864"},
		{func(a *Agent) { a.Service.SpoolBytes = 131071 }, "service.spoolBytes: given 131071"},
		{func(a *Agent) { a.Service.SpoolBytes = 64<<20 + 1 }, "service.spoolBytes: given 67108865"},
		{func(a *Agent) { a.Service.Rails = []string{"torus", "direct"} },
			"service.rails: given torus, direct: want direct, gossip, torus; or gossip, direct, torus"},
		{func(a *Agent) { a.Service.GossipListen, a.Service.Rails = "", []string{"gossip", "direct", "torus"} },
			"service.rails: given gossip, direct, torus: want service.gossipListen as well, or no rails"},
		{func(a *Agent) { a.Service.Checksums = nil }, "service.checksums: given nothing: want at least one, such as crc32c"},
		{func(a *Agent) { a.Service.Checksums[1] = "md5" }, `service.checksums[1]: checksum: given "md5": want one of none, crc32c`},
		{func(a *Agent) { a.Service.Checksums[1] = "xxhash64" }, "service.checksums[1]: given xxhash64: want each checksum once"},
		{func(a *Agent) { a.Supervisors[0].Alternates[0] = "0.0.0.0:1" },
			"supervisors[0].alternates[0]: given 0.0.0.0:1: want the address of one host"},
		{func(a *Agent) { a.Supervisors[0].Alternates[0] = a.Supervisors[0].Report },
			"supervisors[0].alternates[0]: given 10.0.0.100:7001: want an address other than that of supervisors[0].report"},
		{func(a *Agent) { a.Supervisors[0].Alternates[0] = "[fd00::1]:7001" }, "supervisors[0].alternates[0]: given [fd00::1]:7001: want an " +
			"address of the family of 10.8.0.1:7000, by which service interface 1 sends to it"},
		{func(a *Agent) { a.Service.Listen = "[fd00::2]:7001" }, "supervisors[1].report: given"},
		{func(a *Agent) { a.Supervisors[0].Alternates = make([]string, 8) }, "supervisors[0].alternates: given 8: want at most 7"},
		{func(a *Agent) { a.Supervisors = nil }, "supervisors: given nothing: want at least one"},
		{func(a *Agent) { a.Supervisors[1].ID = "s0" }, "supervisors[1].id: given s0: want each supervisor once"},
		{func(a *Agent) { a.Supervisors[1].Report = "s1:7001" }, "supervisors[1].report: given s1:7001"},
		{func(a *Agent) { a.Sensors.Memory.SickCorrected = -1 }, "sensors.memory.sickCorrected: given -1"},
		{func(a *Agent) { a.Recovery.Restarts = 0 }, "recovery.restarts: given 0: want 1 to 100"},
		{func(a *Agent) { a.HardwareWatchdog.Timeout = Duration(time.Minute) }, `hardwareWatchdog.device: given "": want a device`},
		{func(a *Agent) {
			a.HardwareWatchdog = HardwareWatchdogConfig{Device: "watchdog0", Timeout: Duration(10 * time.Second)}
		},
			"hardwareWatchdog.device: given watchdog0: want an absolute path"},
		{func(a *Agent) { a.HardwareWatchdog = HardwareWatchdogConfig{Device: "/dev/watchdog0"} },
			"hardwareWatchdog.timeout: given 0s: want 4s to 5m"},
		{func(a *Agent) {
			a.HardwareWatchdog = HardwareWatchdogConfig{Device: "/dev/watchdog0", Timeout: Duration(10 * time.Second), ContactWithin: 1}
		}, "hardwareWatchdog.contactWithin: given 1ns: want 5s to 1h"},
		{func(a *Agent) { a.Netconsole.Listen = "6666" }, `netconsole.listen: given 6666: want "ip:port", port 1 to 65535`},
		{func(a *Agent) { a.Netconsole.Listen = a.Service.Listen }, "want an address other than that of service.listen"},
		{func(a *Agent) { a.Netconsole.Senders = map[string]fault.NodeID{"10.7.0.2": "n1"} },
			`netconsole.listen: given "": want an address ip:port, because netconsole.senders is set`},
		{func(a *Agent) {
			a.Netconsole = NetconsoleConfig{Listen: "10.7.0.1:6666", Senders: map[string]fault.NodeID{"10.7.0.2:6666": "n1"}}
		}, "netconsole.senders: given 10.7.0.2:6666: want an IP address without a port"},
		{func(a *Agent) { a.Recovery.Window = 0 }, "recovery.window: given 0s: want 1s to 24h"},
		{func(a *Agent) { a.SelfTest.Interval = Duration(499 * time.Millisecond) },
			"selfTest.interval: given 499ms: want 500ms to 5s, or 0s for no self-tests"},
		{func(a *Agent) { a.SelfTest.Interval = Duration(6 * time.Second) }, "selfTest.interval: given 6s: want 500ms to 5s"},
		{func(a *Agent) { a.Processor.Budget = 0.05 }, "processor.budget: given 0.05: want 0.1 to 100 percent of one core, or 0 for no budget"},
		{func(a *Agent) { a.Processor.Budget = math.NaN() }, "processor.budget: given NaN: want 0.1 to 100"},
		{func(a *Agent) { a.SelfTest.IdleAfter = Duration(time.Second) }, "selfTest.idleAfter: given 1s: want selfTest.interval (2s) to 10m"},
		{func(a *Agent) { a.Recovery.StartWithin = Duration(time.Hour) }, "recovery.startWithin: given 1h: want 1s to 10m"},
		{func(a *Agent) { a.Jobs.Socket = "local.sock" },
			`jobs.socket: given "local.sock": want an absolute path of at most 107 bytes, or nothing`},
		{func(a *Agent) { a.Jobs.Socket = "/" + strings.Repeat("x", 107) }, "jobs.socket: given"},
		{func(a *Agent) { a.Jobs.Mode = "0400" }, `jobs.mode: given "0400": want octal, 0600 to 0777`},
		{func(a *Agent) { a.Jobs.Mode = "rw" }, `jobs.mode: given "rw"`},
		{func(a *Agent) { a.Jobs.Group = "no group" }, "jobs.group: given no group: want the name or number of a group, or nothing"},
		{func(a *Agent) { a.Jobs.Watch = []string{"all"} }, `jobs.watch: given "all": want any, root, owner, group, uid:N or gid:N`},
		{func(a *Agent) { a.Jobs.Raise = []string{"uid:-1"} }, `jobs.raise: given "uid:-1"`},
		{func(a *Agent) { a.Jobs.Barrier = make([]string, 257) }, "jobs.barrier: given 257: want at most 256"},
		{func(a *Agent) { a.Responses.LowestFrequency = 9 }, "responses.lowestFrequency: given 9: want 10 to 100 percent"},
		{func(a *Agent) { a.Responses.Checks = make([]ResponseCheck, 33) }, "responses.checks: given 33: want at most 32"},
		{func(a *Agent) { a.Responses.Checks[0].Name = "GPU" }, "responses.checks[0].name: given GPU: want 1 to 63 of a-z"},
		{func(a *Agent) { a.Responses.Checks = append(a.Responses.Checks, a.Responses.Checks[0]) },
			"responses.checks[1].name: given gpu: want each name once"},
		{func(a *Agent) { a.Responses.Checks[0].Command = []string{"gpu"} },
			"responses.checks[0].command: given [gpu]: want a program's absolute path"},
		{func(a *Agent) { a.Responses.Checks[0].Timeout = Duration(time.Millisecond) },
			"responses.checks[0].timeout: given 1ms: want 100ms to 1h"},
		{func(a *Agent) { a.Dims, a.Routing = "2x2x1 without 1,1,0", "chaos" }, "want none: in the 2x2x1 without 1,1,0 torus no other node"},
		{func(a *Agent) { a.Dims = "2x2x1 without 1,0,0 0,1,0" }, "links lead from 0,0,0 to 1 of 2 nodes only: want a torus in one part"},
		{func(a *Agent) { a.Dims, a.Routing = "2x2x1 without 0,1,0", "dimension-order" }, "routing: given dimension-order: want chaos"},
		{func(a *Agent) { a.HTTP = "9100" }, "http: given 9100"},
		{func(a *Agent) { a.Log.Level = "loud" }, "log.level: given loud: want one of debug, info, warn, error"},
		{func(a *Agent) { a.Log.Format = "xml" }, "log.format: given xml: want one of text, json"},
	} {
		a := goodAgent(t)
		tc.change(&a)
		if err := a.Validate(); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("error %v: want one that has %q", err, tc.names)
		}
	}
	spare := goodAgent(t)
	spare.Spare, spare.Coord = true, ""
	for d := range spare.Links {
		spare.link(d, func(l *LinkAddr) { l.Peer, l.PeerNode = "", "" })
	}
	if err := spare.Validate(); err != nil {
		t.Errorf("a spare: %v", err)
	}
	spare.Dims, spare.Links["Z+"] = "", LinkAddr{Local: "10.0.0.9:7109"}
	if err := spare.Validate(); err != nil {
		t.Errorf("a spare that learns its torus: %v", err)
	}
	grows := goodAgent(t)
	grows.Links["Z+"] = LinkAddr{Local: "10.0.0.9:7109"}
	if err := grows.Validate(); err != nil {
		t.Errorf("an end in a direction without a link: %v", err)
	}
	grows.Links["Z+"] = LinkAddr{Local: "10.0.0.1:7000"}
	if err := grows.Validate(); err == nil || !strings.Contains(err.Error(), "links.Z+.local") {
		t.Errorf("its address is another socket's: %v", err)
	}
	// The bare defaults: everything required is named at once.
	err := DefaultAgent().Validate()
	for _, f := range []string{"cluster", "dims", "coord", "tls.ca", "tls.hostCert", "tls.hostKey", "tls.dnpCert", "tls.dnpKey",
		"service.listen", "supervisors"} {
		if err == nil || !strings.Contains(err.Error(), f+": ") {
			t.Errorf("%s is not named in %v", f, err)
		}
	}
}

// link changes one link in place.
func (a *Agent) link(dir string, change func(*LinkAddr)) {
	l := a.Links[dir]
	change(&l)
	a.Links[dir] = l
}

// inRegions makes two regions of one node each, and a replica of the first.
func inRegions(s *Supervisor) {
	s.Region = "west"
	s.Regions = []RegionEntry{
		{Name: "west", Supervisors: []UpstreamEntry{{ID: "s0", GRPC: "10.0.0.100:7002"}}},
		{Name: "east", Supervisors: []UpstreamEntry{{ID: "e0", GRPC: "10.0.0.101:7002"}}},
	}
	s.Upstream = []UpstreamEntry{{ID: "p0", GRPC: "10.0.0.102:7002"}}
	s.Nodes[0].Region, s.Nodes[1].Region = "west", "east"
}

// TestRegionAndParentConfigurationsAreValid: a region's file and its parent's are good.
func TestRegionAndParentConfigurationsAreValid(t *testing.T) {
	s := goodSupervisor(t)
	inRegions(&s)
	if err := s.Validate(); err != nil || s.Parent() || s.EtcdToken() == goodSupervisor(t).EtcdToken() {
		t.Errorf("region: %v, parent %t", err, s.Parent())
	}
	s.Region, s.Upstream, s.Report, s.ReportAlternates, s.GossipListen = "", nil, "", nil, ""
	if err := s.Validate(); err != nil || !s.Parent() {
		t.Errorf("parent: %v, parent %t", err, s.Parent())
	}
}

func TestSupervisorValidationNamesField(t *testing.T) {
	for _, tc := range []struct {
		change func(*Supervisor)
		names  string
	}{
		{func(s *Supervisor) { s.Cluster = "-" }, "cluster: given -"},
		{func(s *Supervisor) { s.ID = "" }, "id: given nothing"},
		{func(s *Supervisor) { s.Dims = "2x2x2x2" }, `dims: dims "2x2x2x2"`},
		{func(s *Supervisor) { s.Dims = "3x1x1" }, "nodes: given 2 places: want all 3 of the 3x1x1 torus: 2,0,0 is missing"},
		{func(s *Supervisor) { s.Dims = "65536x32768" }, "nodes: given 2 places: want all 2147483648"},
		{func(s *Supervisor) { s.Nodes[1].Coord = "0,1,0" }, "nodes[1].coord: coordinate 0,1,0: outside the 2x1x1 torus"},
		{func(s *Supervisor) { s.Nodes[1].Coord = "0,0,0" }, "nodes[1].coord: given 0,0,0: want a place of its own: nodes[0] has it"},
		{func(s *Supervisor) { s.Nodes[1].ID = "n0-0-0" }, "nodes[1].id: given n0-0-0: want a name of its own: nodes[0] has it"},
		{func(s *Supervisor) { s.Nodes[1].Service = "worker:1" }, "nodes[1].service: given worker:1"},
		{func(s *Supervisor) { s.Nodes[1].Labels = map[string]string{"-": "x"} }, `nodes[1].labels: label key "-": want 1 to 63 letters`},
		{func(s *Supervisor) { s.Nodes[1].Labels = map[string]string{"rack": "a b"} },
			`nodes[1].labels: label rack: label value "a b": want nothing`},
		{func(s *Supervisor) { s.Spares[0].ID = "worker-b" }, "spares[0].id: given worker-b: want a name of its own: nodes[1] has it"},
		{func(s *Supervisor) { s.Spares[0].ID = "" }, "spares[0].id: given nothing"},
		{func(s *Supervisor) { s.Spares[0].Service = "x" }, "spares[0].service: given x"},
		{func(s *Supervisor) { s.Spares[0].Service, s.Spares[0].Alternates = "", []string{"10.0.0.8:1"} },
			"spares[0].service: given nothing: want the address of the first interface"},
		{func(s *Supervisor) { s.Spares[0].Labels = map[string]string{"": ""} }, `spares[0].labels: label key "": want`},
		{func(s *Supervisor) { s.DomainLabels = []string{"rack", "rack"} }, "domainLabels[1]: given rack: want each key once"},
		{func(s *Supervisor) { s.DomainLabels = slices.Repeat([]string{"a"}, 17) }, "a a]: want at most 16 keys"},
		{func(s *Supervisor) { s.DomainLabels = []string{"a b"} }, `domainLabels[0]: label key "a b"`},
		{func(s *Supervisor) { s.Report = "" }, "report: given nothing"},
		{func(s *Supervisor) { s.Region = "west" }, "region: given west: want one of regions"},
		{func(s *Supervisor) { s.Nodes[0].Region = "west" },
			"nodes[0].region: given west: want one of regions where there are any, else nothing"},
		{func(s *Supervisor) { inRegions(s); s.Nodes[0].Region = "" }, "nodes[0].region: given nothing: want one of regions"},
		{func(s *Supervisor) { inRegions(s); s.Nodes[1].Region = "west" }, "regions[1]: given east: want a region of at least one node"},
		{func(s *Supervisor) { inRegions(s); s.Regions[1].Name = "west" }, "regions[1].name: given west: want each region once"},
		{func(s *Supervisor) { inRegions(s); s.Regions[0].Name = "-" }, "regions[0].name: given -: want 1 to 63 letters"},
		{func(s *Supervisor) { inRegions(s); s.Regions[1].Supervisors = nil },
			"regions[1].supervisors: given nothing: want at least one supervisor"},
		{func(s *Supervisor) { inRegions(s); s.Regions[1].Supervisors[0].ID = "s0" },
			"regions[1].supervisors[0].id: given s0: want each supervisor once: regions[0].supervisors[0] has it"},
		{func(s *Supervisor) { inRegions(s); s.Upstream[0].GRPC = "parent:1" }, "upstream[0].grpc: given parent:1"},
		{func(s *Supervisor) { inRegions(s); s.Region = "" }, "upstream: given 1: want none without region"},
		{func(s *Supervisor) { inRegions(s); s.Region, s.Upstream = "", nil },
			"report: given 10.0.0.100:7001: want none: a parent of regions has no nodes of its own"},
		{func(s *Supervisor) { inRegions(s); s.Region, s.Upstream = "", nil }, "gossipListen: given"},
		{func(s *Supervisor) { s.Nodes[1].Alternates[0] = "0.0.0.0:1" }, "nodes[1].alternates[0]: given 0.0.0.0:1: want the address of one host"},
		{func(s *Supervisor) { s.Nodes[1].Alternates[0] = s.Nodes[1].Service },
			"nodes[1].alternates[0]: given 10.0.0.2:7000: want an address other than that of nodes[1].service"},
		{func(s *Supervisor) { s.Nodes[1].Alternates = make([]string, 8) }, "nodes[1].alternates: given 8: want at most 7"},
		{func(s *Supervisor) { s.ReportAlternates[0] = "0.0.0.0:7001" }, "reportAlternates[0]: given 0.0.0.0:7001: want the address of one host"},
		{func(s *Supervisor) { s.ReportAlternates[0] = s.Report },
			"reportAlternates[0]: given 10.0.0.100:7001: want an address other than that of report"},
		{func(s *Supervisor) { s.ReportAlternates[0] = s.GossipListen },
			"reportAlternates: given 10.0.0.100:7946: want an address other than that of gossipListen"},
		{func(s *Supervisor) { s.ReportAlternates = make([]string, 8) }, "reportAlternates: given 8: want at most 7"},
		{func(s *Supervisor) { s.Checksums = nil }, "checksums: given nothing: want at least one, such as crc32c"},
		{func(s *Supervisor) { s.Checksums[1] = "md5" }, `checksums[1]: checksum: given "md5": want one of none, crc32c`},
		{func(s *Supervisor) { s.GRPC = "x" }, "grpc: given x"},
		{func(s *Supervisor) { s.HTTP = s.GRPC }, "http: given 10.0.0.100:7002: want an address other than that of grpc"},
		{func(s *Supervisor) { s.GossipListen = s.Report }, "gossipListen: given 10.0.0.100:7001: want an address other than that of report"},
		{func(s *Supervisor) { s.GossipKeyFile = "" }, "gossipKeyFile: given nothing"},
		{func(s *Supervisor) { s.DataDir = "" }, "dataDir: given nothing"},
		{func(s *Supervisor) { s.DiskWarnBytes = 1<<40 + 1 }, "diskWarnBytes: given 1099511627777: want 0 to 1099511627776"},
		{func(s *Supervisor) { s.Diagnosis.Auto = "all" }, "diagnosis.auto: given all: want off or links"},
		{func(s *Supervisor) { s.Diagnosis.After = Duration(time.Millisecond) }, "diagnosis.after: given 1ms: want 1s to 24h"},
		{func(s *Supervisor) { s.Diagnosis.MinInterval = Duration(time.Second) }, "diagnosis.minInterval: given 1s: want 1m to 168h"},
		{func(s *Supervisor) { s.Diagnosis.Pause = Duration(2 * time.Hour) }, "diagnosis.pause: given 2h: want 1s to 1h"},
		{func(s *Supervisor) { s.Diagnosis.Drain = true }, "diagnosis.drain: given true: want false with diagnosis.auto: off"},
		{func(s *Supervisor) { s.Responses.MaxNodes = 0 }, "responses.maxNodes: given 0: want 1 to 1048576"},
		{func(s *Supervisor) { s.Responses.BreakerPercent, s.Responses.MaxActive = 51, 0 }, "responses.breakerPercent: given 51: want 1 to 50"},
		{func(s *Supervisor) { s.Responses.BreakerPercent, s.Responses.MaxActive = 51, 0 }, "responses.maxActive: given 0"},
		{func(s *Supervisor) { s.Responses.SupervisorNodes = map[string]string{"s1": ""} },
			`responses.supervisorNodes: given "s1": "": want a supervisor's id or "*", and a node's id or "none"`},
		{func(s *Supervisor) { s.Responses.Keep = 1 }, "responses.keep: given 1ns: want 1h or more"},
		{func(s *Supervisor) { s.Responses.OptOutLabel = "" }, "responses.optOutLabel: given"},
		{func(s *Supervisor) { s.Responses.Executors.Node.AskFor = Duration(time.Hour) },
			"responses.executors.node.askFor: given 1h: want 100ms to 1m, or 0 for 10s"},
		{func(s *Supervisor) { s.Responses.AuditLines = 1 }, "responses.auditLines: given 1: want 1000 to 10000000"},
		{func(s *Supervisor) { s.Responses.Executors.Kubernetes = &KubernetesConfig{QPS: -1} }, "responses.executors.kubernetes.qps: given -1"},
		{func(s *Supervisor) { s.Responses.Executors.Webhooks = &Webhooks{} }, "responses.executors.webhooks.targets"},
		{func(s *Supervisor) { s.Responses.Executors.Alertmanager = &Alertmanagers{} }, "responses.executors.alertmanager.urls"},
		{func(s *Supervisor) { s.Responses.Executors.Process = &ExecutorClient{} }, "responses.executors.process.address: given nothing"},
		{func(s *Supervisor) { s.Responses.AuditBytes = 1 }, "responses.auditBytes: given 1: want 1 MiB to 1 GiB"},
		{func(s *Supervisor) { s.Foresight = Duration(time.Second) }, "foresight: given 1s: want 0s (none), or 1m to 168h"},
		{func(s *Supervisor) { d := Duration(time.Millisecond); s.StopLimit = &d }, "stopLimit: given 1ms: want 0s (none), or 1s to 24h"},
		{func(s *Supervisor) { d := Duration(25 * time.Hour); s.StopLimit = &d }, "stopLimit: given 25h"},
		{func(s *Supervisor) { s.Foresight = Duration(200 * time.Hour) }, "foresight: given 200h"},
		{func(s *Supervisor) { s.IncidentQuiet = -1 }, "incidentQuiet: given -1ns: want 0s to 24h"},
		{func(s *Supervisor) { s.IncidentQuiet = Duration(25 * time.Hour) }, "incidentQuiet: given 25h"},
		{func(s *Supervisor) { s.Etcd.Endpoints = []string{"http://e:1"} }, `etcd.endpoints[0]: given http://e:1: want "https://host:port"`},
		{func(s *Supervisor) { s.Etcd.PeerURL = "" }, "etcd.peerURL: given nothing"},
		{func(s *Supervisor) { s.Etcd.ClientURL = "http://10.0.0.1:2379" }, "etcd.clientURL: given http://10.0.0.1:2379"},
		{func(s *Supervisor) { s.Etcd.InitialCluster = "s1=https://10.0.0.101:2380" }, "with s0=https://10.0.0.100:2380 among them"},
		{func(s *Supervisor) { s.Etcd.ClusterState = "old" }, "etcd.clusterState: given old: want one of new, existing"},
		{func(s *Supervisor) { s.Etcd.CompactionRetention = 0 }, "etcd.compactionRetention: given 0s: want 1m to 168h"},
		{func(s *Supervisor) { s.Etcd.KeepEvents = 99 }, "etcd.keepEvents: given 99: want 100 to 10000000"},
		{func(s *Supervisor) { s.Etcd.HistoryAge = 1 }, "etcd.historyAge: given 1ns: want 1m to 8760h"},
		{func(s *Supervisor) { s.Etcd.HistoryBytes = 1 }, "etcd.historyBytes: given 1: want 1048576 to 4294967296"},
		{func(s *Supervisor) { s.Etcd.KeepIncidents = 9 }, "etcd.keepIncidents: given 9: want 10 to 1000, or 0 for 1000"},
		{func(s *Supervisor) { s.Etcd.QuotaBytes = 1 }, "etcd.quotaBytes: given 1: want 16777216 to 8589934592"},
		{func(s *Supervisor) { s.TLS.Cert = "" }, "tls.cert: given nothing"},
		{func(s *Supervisor) { s.ECDSA.Cert = "e.pem" }, "ecdsa.cert, ecdsa.key: given e.pem, : want both or none"},
		{func(s *Supervisor) { s.Renewal.Cert = "i.pem" }, "renewal.cert, renewal.key: given i.pem, : want both or none"},
		{func(s *Supervisor) { s.Renewal.Lifetime = Duration(time.Hour) }, "renewal.lifetime: given 1h: want none without renewal.cert"},
		{func(s *Supervisor) { s.Renewal = RenewalConfig{Cert: "i", Key: "k", Lifetime: Duration(time.Second)} },
			"renewal.lifetime: given 1s: want 20s to 8760h"},
		{func(s *Supervisor) {
			s.Renewal = RenewalConfig{Cert: "i", Key: "k", Lifetime: Duration(9000 * time.Hour)}
		}, "renewal.lifetime: given 9000h"},
		{func(s *Supervisor) { s.Replicas = s.Replicas[1:] }, `replicas: given 1: want all replicas, "s0" itself included`},
		{func(s *Supervisor) { s.Replicas[1].ID = "s0" }, "replicas[1].id: given s0: want each replica once"},
		{func(s *Supervisor) { s.Replicas[1].GRPC = "" }, "replicas[1].grpc: given nothing"},
		{func(s *Supervisor) { s.Replicas[1].HTTP = ":1" }, "replicas[1].http: given :1"},
		{func(s *Supervisor) { s.Preset = "" }, `preset: given ""`},
		{func(s *Supervisor) { s.Log.Level = "" }, "log.level: given nothing"},
	} {
		s := goodSupervisor(t)
		tc.change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("error %v: want one that has %q", err, tc.names)
		}
	}
	outside := goodSupervisor(t)
	outside.Etcd = DefaultSupervisor().Etcd
	outside.Etcd.Endpoints = []string{"https://e:2379"}
	if err := outside.Validate(); err != nil {
		t.Errorf("with an outside etcd: %v", err)
	}
	err := DefaultSupervisor().Validate()
	for _, f := range []string{"cluster", "id", "dims", "report", "grpc", "tls.ca", "tls.cert", "tls.key", "replicas", "etcd.peerURL",
		"etcd.clientURL", "etcd.initialCluster"} {
		if err == nil || !strings.Contains(err.Error(), f+": ") {
			t.Errorf("%s is not named in %v", f, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range []string{"testdata/agent.yaml", "testdata/supervisor.yaml"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("links: {X+: }"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a := DefaultAgent()
		dir, err := stateDirIn(b, a.StateDir)
		if decode(b, &a) == nil {
			if err != nil || dir != a.StateDir {
				t.Errorf("state directory %q, %v: want %q", dir, err, a.StateDir)
			}
			a.complete()
			_ = a.Validate()
		}
		s := DefaultSupervisor()
		if decode(b, &s) == nil {
			s.complete()
			_ = s.Validate()
		}
	})
}

func TestCallerRulesMatchUsersAndGroups(t *testing.T) {
	for _, tc := range []struct {
		words []string
		uid   uint32
		gids  []uint32
		want  bool
	}{
		{nil, 0, []uint32{0}, false},
		{[]string{"any"}, 12345, nil, true},
		{[]string{"root"}, 0, nil, true}, {[]string{"root"}, 1, []uint32{0}, false},
		{[]string{"owner"}, 500, nil, true}, {[]string{"owner"}, 0, nil, false},
		{[]string{"group"}, 7, []uint32{9, 600}, true}, {[]string{"group"}, 7, []uint32{9}, false},
		{[]string{"root", "owner"}, 7, []uint32{600}, false},
		{[]string{"uid:7"}, 7, nil, true}, {[]string{"uid:7"}, 8, []uint32{7}, false}, {[]string{"uid:4294967295"}, 4294967295, nil, true},
		{[]string{"root", "gid:9"}, 7, []uint32{9}, true}, {[]string{"gid:9"}, 9, []uint32{1}, false},
	} {
		w, err := ParseWho(tc.words)
		if err != nil || w.Has(tc.uid, tc.gids, 500, 600) != tc.want {
			t.Errorf("%q has uid %d, groups %d: %t, %v", tc.words, tc.uid, tc.gids, !tc.want, err)
		}
	}
	for _, bad := range []string{"", "uid:", "uid:x", "uid:4294967296", "Root", "any ", "gid", "user:1"} {
		if _, err := ParseWho([]string{"any", bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestJobsSocketHasDefaults(t *testing.T) {
	a := goodAgent(t)
	if a.JobsSocket() != "/run/lofamo/local.sock" {
		t.Error(a.JobsSocket())
	}
	a.Jobs.Socket = ""
	if a.JobsSocket() != "/var/lib/lofamo/agent/local.sock" {
		t.Error(a.JobsSocket())
	}
	if m, err := a.Jobs.FileMode(); m != 0o660 || err != nil {
		t.Error(m, err)
	}
	if m, err := DefaultAgent().Jobs.FileMode(); m != 0o600 || err != nil {
		t.Error(m, err)
	}
}
