package config

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
)

// The platforms on which a node's DNP half can run.
const (
	PlatformSharedKernel = "shared-kernel" // both halves under one kernel: both die with it
	PlatformDPU          = "dpu"           // the DNP half has a kernel of its own, on the network card's processor
)

// Agent is the configuration of the two halves of one node. Both halves and the recovery daemon
// read the same file.
type Agent struct {
	// Cluster is the cluster's name, as in the certificates. 1 to 63 of a-z, 0-9, '-' and '.'.
	// Required.
	Cluster string `json:"cluster"`
	// Node is the node's name, as in the certificates. Letters, digits, '-', '_' and '.'. Default from
	// the coordinate: n1-0-1 at 1,0,1.
	Node fault.NodeID `json:"node"`
	// Spare: the node stands by to replace another. The supervisors assign its coordinates and peers when it replaces a
	// node (`lofamoctl node replace`); until then lofamo-agent run waits and starts no half. Not allowed beside window.
	// Default false.
	Spare bool `json:"spare,omitempty"`
	// Coord is the node's coordinates in the torus, "x,y,z". Inside Dims. Required, but empty for a spare.
	Coord string `json:"coord"`
	// Dims are the sizes of the torus, "XxYxZ", each 1 to 65536, and its empty places, if any: "3x2x2 without 1,0,0 2,1,1".
	// "0,1,1..2,1,1" is a range of ranks, X fastest. A torus with empty places has at most 1,048,576 places. A supervisor's
	// order about a node that has joined or left overrides it. Required, but optional for a spare.
	Dims string `json:"dims"`
	// StateDir is a directory of this node alone: register file, mailbox, boot epochs, sockets.
	// At most 90 bytes, for Unix sockets' names end at 108. Default /var/lib/lofamo/agent.
	StateDir string `json:"stateDir"`
	// DiskWarnBytes is the free space of StateDir's disk, in bytes, below which the host half warns: in its log and by
	// the metric lofamo_agent_disk_low. 0 for never, or at most 1 TiB. Default 64 MiB.
	DiskWarnBytes int64 `json:"diskWarnBytes"`
	// Platform is the platform of the DNP half: shared-kernel or dpu. The agent reports what it finds: dpu if a window joins
	// two kernels, and otherwise shared-kernel. With dpu and without a window it warns. Default shared-kernel.
	Platform string `json:"platform"`
	// Preset of periods: default, fast or relaxed. All nodes and supervisors alike.
	Preset string `json:"preset"`
	// Periods sets single values of the preset. Default none.
	Periods *PeriodsOverride `json:"periods,omitempty"`
	// TLS are the files with the certificates and keys of both halves. Required.
	TLS AgentTLS `json:"tls"`
	// Links has one entry for each direction that the torus has: X+, X-, Y+, Y-, Z+, Z-. A dimension
	// of size 1 has none. An entry for another direction has no peer and no peerNode: it becomes a link when a node joins
	// there. A spare needs entries for all directions in which it may get links.
	Links map[string]LinkAddr `json:"links"`
	// MaskedLinks are directions of links that carry no messages, regardless of the supervisors' orders: the node's own
	// channel mask. A subset of Links. Default none.
	MaskedLinks []string `json:"maskedLinks,omitempty"`
	// MTU is the maximum size of a torus frame, in bytes: longer frames are neither sent nor accepted, so use the same
	// value on all nodes. Frames of more than 1232 bytes travel in pieces that every path takes. 1280 to 8224. Default 1472.
	MTU int `json:"mtu"`
	// MaxHops is the maximum number of links that a message may travel in the torus: 1 to 255, or 0 for twice the
	// torus' diameter plus 20, within 32 to 255, which is enough for detours around faults. With a window, the host
	// half's value overrules the DNP half's, unless it is 0. Default 0.
	MaxHops int `json:"maxHops"`
	// Routing is the routing algorithm for torus messages: chaos detours around faults, minimal-adaptive takes shortest
	// paths only, dimension-order one of those only. A message without a path goes to all neighbours. Nodes may differ.
	// Default chaos.
	Routing string `json:"routing"`
	// Service is the node's side of the service network.
	Service ServiceConfig `json:"service"`
	// Join makes the node enrol with the supervisors instead of reading its names, keys and addresses here. Not
	// allowed together with cluster, coord, dims, tls, links, supervisors, periods or window. The supervisors' preset replaces
	// preset. Default none.
	Join JoinConfig `json:"join,omitzero"`
	// LeaveOnShutdown makes the node leave the cluster for good when systemd powers its machine off or halts it: for machines that an
	// autoscaler takes. A reboot is a stop as always. Default false.
	LeaveOnShutdown bool `json:"leaveOnShutdown,omitempty"`
	// Window joins the two halves of a node that run under two kernels. Default none: both halves have one kernel.
	Window WindowConfig `json:"window,omitzero"`
	// Supervisors are the replicas to report to, the preferred first. At least one.
	Supervisors []SupervisorAddr `json:"supervisors"`
	// Sensors configures the measurements.
	Sensors sensor.Config `json:"sensors"`
	// Recovery limits the restarts of a half that ends or hangs.
	Recovery RecoveryConfig `json:"recovery"`
	// HardwareWatchdog resets the machine when a half stalls or, with contactWithin, when the node is cut off. Default none.
	HardwareWatchdog HardwareWatchdogConfig `json:"hardwareWatchdog,omitzero"`
	// Netconsole receives the last kernel lines of other machines; in a DNP half with a window, those of its host. Default none.
	Netconsole NetconsoleConfig `json:"netconsole,omitzero"`
	// SelfTest is the schedule of self-tests of the modules in use.
	SelfTest SelfTestConfig `json:"selfTest"`
	// CheckMemory lets each half compare checksums of its data before each step. It is for machines whose memory corrects no
	// errors (without ECC). A half that finds a flipped bit ends before it uses the value, and resumes from its copy. It costs 10 to 20 µs
	// of processor time a step, at some tens of steps a second. Default false.
	CheckMemory bool `json:"checkMemory,omitempty"`
	// Processor is the processor time that the halves may use.
	Processor ProcessorConfig `json:"processor"`
	// Procedure configures the node's part in the fault management procedure, besides orders of supervisors.
	Procedure ProcedureConfig `json:"procedure"`
	// Jobs is the socket for the jobs on the node, with its access lists.
	Jobs JobsConfig `json:"jobs"`
	// Responses lists the actions that supervisors may order this node to take in response to a fault.
	Responses ResponsesConfig `json:"responses,omitzero"`
	// Injection opens the fault-injection hooks. Only clusters on one machine made by lofamoctl set
	// it. Default false.
	Injection bool `json:"injection,omitempty"`
	// HTTP is the address of metrics and health, "ip:port". Default none.
	HTTP string `json:"http,omitempty"`
	// Log configures the log.
	Log LogConfig `json:"log"`
}

// AgentTLS names PEM files.
type AgentTLS struct {
	CA       string `json:"ca"`       // the cluster's certificate authorities
	HostCert string `json:"hostCert"` // certificate of the host half: lofamo://CLUSTER/node/NODE/host
	HostKey  string `json:"hostKey"`  // its key, readable by its owner only
	DNPCert  string `json:"dnpCert"`  // certificate of the DNP half: lofamo://CLUSTER/node/NODE/dnp
	DNPKey   string `json:"dnpKey"`   // its key, readable by its owner only
}

// LinkAddr is one torus link: UDP for the frames, TCP on the same addresses for the handshake.
type LinkAddr struct {
	// Local address, "ip:port". No two links share one.
	Local string `json:"local"`
	// Peer is the neighbour's address for this link, "ip:port". Required, but empty for a spare, and where the torus has
	// no link. A supervisor's order about another neighbour overrides this and PeerNode.
	Peer string `json:"peer,omitempty"`
	// PeerNode is the neighbour's name. Default from its coordinate.
	PeerNode fault.NodeID `json:"peerNode,omitempty"`
	// Interface binds the link to a network interface (SO_BINDTODEVICE). Default none.
	Interface string `json:"interface,omitempty"`
}

// ServiceConfig is the node's side of the service network.
type ServiceConfig struct {
	// Listen is the address of the direct rail, UDP, "ip:port". Required.
	Listen string `json:"listen"`
	// GossipListen is the address of the gossip rail, UDP and TCP, "ip:port". Default none: no gossip.
	GossipListen string `json:"gossipListen,omitempty"`
	// GossipJoin are members to join by, "ip:port". Default none.
	GossipJoin []string `json:"gossipJoin,omitempty"`
	// GossipKeyFile holds the gossip key: 32 bytes in base64. Up to two more keys, each on its own line, are accepted
	// from other members while the key is changed; the first encrypts. Required with GossipListen.
	GossipKeyFile string `json:"gossipKeyFile,omitempty"`
	// Rails is the order of the rails for a report: "direct, gossip, torus", or "gossip, direct, torus" to begin with
	// gossip, which needs GossipListen and costs every member. Digests never go by gossip. Default direct first.
	Rails []string `json:"rails,omitempty"`
	// Interface is the network interface of the service network, to which the rails are bound. Default none: not bound.
	Interface string `json:"interface,omitempty"`
	// Alternates are further service interfaces, each a separate direct rail, at most 7. Listen and Interface above are
	// number 0, these are 1, 2 and so on. Gossip uses number 0. Default none.
	Alternates []ServiceAddr `json:"alternates,omitempty"`
	// SpoolBytes is the size of the file, one a half, that keeps undelivered reports over a restart. 0
	// for none, or 131072 to 67108864. Default 4194304.
	SpoolBytes int64 `json:"spoolBytes"`
	// Checksums are the end-to-end checksums that a half offers its supervisors, the preferred first: crc32c, crc32,
	// fletcher64, adler32, xxhash64, sum64 or none. Until a supervisor has chosen one, the half uses crc32c. Default
	// crc32c alone.
	Checksums []string `json:"checksums"`
}

// ServiceAddr is one service interface of a node.
type ServiceAddr struct {
	// Listen is the address of its direct rail, UDP, "ip:port". No two share one.
	Listen string `json:"listen"`
	// Interface is the network interface that it is bound to. Default none: not bound.
	Interface string `json:"interface,omitempty"`
}

// SupervisorAddr is a supervisor to report to.
type SupervisorAddr struct {
	ID     string `json:"id"`     // as in its certificate
	Report string `json:"report"` // its report address, UDP, "ip:port"
	// Alternates are its further report addresses, "ip:port", at most 7. Service interface k of a node reaches it at
	// address k of report and these, or at the last one if there are fewer. Default none.
	Alternates []string `json:"alternates,omitempty"`
}

// RecoveryConfig is the budget of the recovery daemon, lofamo-agent run.
type RecoveryConfig struct {
	// Restarts is the maximum number of restarts of a half within Window. Instead of one more, the daemon gives the half up: it
	// waits for Window before the next start, 1m at most, and for up to ten times that if starts go on failing. 1 to 100. Default 5.
	Restarts int `json:"restarts"`
	// Window is the time over which Restarts counts; it stands still while the half is given up. 1s to 24h. Default 1m.
	Window Duration `json:"window"`
	// StartWithin is the maximum time for a started half to write its watchdog word for the first time; after that the
	// daemon kills it. Only time in which the half could run counts. 1s to 10m. Default 5s.
	StartWithin Duration `json:"startWithin"`
}

// HardwareWatchdogConfig is the machine's watchdog device, which lofamo-agent run feeds. An armed device resets the machine
// when the daemon dies or hangs, when a half writes no watchdog word for 30 s, and when the node is cut off. It is armed
// once both halves serve, and disarmed when the daemon stops on request. Of two daemons, each with one half, that of the host
// half feeds it. Not allowed beside window.
type HardwareWatchdogConfig struct {
	// Device is the device's path, such as /dev/watchdog0. No other program may feed it. Default none: nothing is armed.
	Device string `json:"device,omitempty"`
	// Timeout is the time after which an unfed device resets the machine, in whole seconds. 4s to 5m; the device may allow
	// less. Required with Device.
	Timeout Duration `json:"timeout,omitempty"`
	// ContactWithin is how long the node may be without contact before the device is no longer fed: self-fencing. Contact is a
	// link that works both ways, or a supervisor that answers. The machine is down at most Timeout later, or twice
	// Timeout if the daemon ends meanwhile. If the daemon is stopped while no supervisor can commit that, the device stays
	// armed. 5s to 1h, or 0s for no self-fencing. Default 0s.
	ContactWithin Duration `json:"contactWithin,omitempty"`
	// AllowNoWayOut accepts a device that cannot be disarmed, or for which the kernel does not say. If the daemon is then
	// stopped for longer than Timeout, or the node gets another place or loses its place, the machine resets. Default false.
	AllowNoWayOut bool `json:"allowNoWayOut,omitempty"`
}

// NetconsoleConfig is the receiver of netconsole: UDP datagrams with the lines of other machines' kernels. They are not
// authenticated, so they are only text for people. The host half receives the lines of its neighbours' machines, from the
// addresses in links. With a window, the DNP half, by its own configuration, receives the lines of its host's kernel,
// from the address in window.peer.
type NetconsoleConfig struct {
	// Listen is the address of the receiver, "ip:port" with port 1 to 65535; netconsole's usual port is 6666. For a DNP half with
	// a window, its IP is that of window.listen. Default none: nothing is received.
	Listen string `json:"listen,omitempty"`
	// Senders maps further source addresses to the names of their nodes, such as "10.7.0.2": n1-0-0. An entry replaces
	// a neighbour's. At most 64, and none for a DNP half with a window. Default none.
	Senders map[string]fault.NodeID `json:"senders,omitempty"`
}

// SelfTestConfig is how the halves test the modules that are in use.
type SelfTestConfig struct {
	// Interval is between two tests of a module. 500ms to 5s, or 0s for no self-tests. Default 2s.
	Interval Duration `json:"interval"`
	// IdleAfter is the time without use after which a module is no longer tested, from Interval to 10m. Default 10s.
	IdleAfter Duration `json:"idleAfter"`
}

// ProcessorConfig bounds the processor time of the halves.
type ProcessorConfig struct {
	// Budget is the processor time that each half may use, in percent of one core, over about ten seconds. A half that
	// uses more gives up periodic work until it uses at most three quarters: digests become rarer, then probes, then
	// readings of sensors; never the watchdog words, the links' heartbeats or the answers to challenges. 0.1 to 100, or
	// 0 for no budget. Default 10, which is four times as much as an idle half uses at preset fast.
	Budget float64 `json:"budget"`
}

// When a node begins the fault management procedure by itself.
const (
	ProcedureNever      = "never"
	ProcedureOnEvidence = "evidence"
)

// ProcedureConfig is a node's part in the fault management procedure (seed 003 §4.5): the whole torus holds back
// deferrable messages, drains, tests its links, and resumes.
type ProcedureConfig struct {
	// Start selects when the node begins a procedure by itself: never, or on evidence that a message was lost or
	// altered in transit, or that a neighbour violates the link protocol. Nodes rest 30 s after each, and join 4 of a
	// node an hour. Default never.
	Start string `json:"start"`
	// MaskDead has the node mask its own end of links that its tests find dead while the torus is empty; a later
	// diagnosis that finds them good restores them. Default false.
	MaskDead bool `json:"maskDead"`
}

// LogConfig configures the log.
type LogConfig struct {
	// Level is debug, info, warn or error. Default info.
	Level string `json:"level"`
	// Format is text or json. Default text.
	Format string `json:"format"`
}

// DefaultBudget is the default of ProcessorConfig.Budget.
const DefaultBudget = 10

// DefaultAgent returns the defaults. Fields without a default are empty, and Validate names them.
func DefaultAgent() Agent {
	return Agent{
		StateDir:      "/var/lib/lofamo/agent",
		DiskWarnBytes: 64 << 20,
		Platform:      PlatformSharedKernel,
		Preset:        PresetDefault,
		MTU:           1472,
		Routing:       routing.Chaos.String(),
		Service:       ServiceConfig{SpoolBytes: 4 << 20, Checksums: []string{servicenet.ChecksumName(servicenet.DefaultChecksum)}},
		Sensors:       sensor.DefaultConfig(),
		Recovery:      RecoveryConfig{Restarts: 5, Window: Duration(time.Minute), StartWithin: Duration(5 * time.Second)},
		SelfTest:      SelfTestConfig{Interval: Duration(2 * time.Second), IdleAfter: Duration(10 * time.Second)},
		Processor:     ProcessorConfig{Budget: DefaultBudget},
		Procedure:     ProcedureConfig{Start: ProcedureNever},
		Jobs:          defaultJobs(),
		Log:           LogConfig{Level: "info", Format: "text"},
	}
}

// Timing returns the preset with its overrides. It fails where Validate does.
func (a Agent) Timing() (Periods, error) { return timing(a.Preset, a.Periods) }

// Topology returns the parsed coordinate and dims, the former inside the latter.
func (a Agent) Topology() (grid.Coord, grid.Dims, error) {
	d, err := grid.ParseDims(a.Dims)
	if err != nil {
		return grid.Coord{}, grid.Dims{}, err
	}
	c, err := grid.ParseCoord(a.Coord)
	if err != nil {
		return grid.Coord{}, grid.Dims{}, err
	}
	return c, d, d.Check(c)
}

// HopLimit returns MaxHops, or the computed value if it is 0. The configuration must be valid.
func (a Agent) HopLimit() uint8 {
	if a.MaxHops > 0 {
		return uint8(min(a.MaxHops, 255))
	}
	_, dims, _ := a.Topology()
	return routing.HopBound(dims)
}

// Interfaces returns all service interfaces by their numbers.
func (s ServiceConfig) Interfaces() []ServiceAddr {
	return append([]ServiceAddr{{Listen: s.Listen, Interface: s.Interface}}, s.Alternates...)
}

// InterfaceNames returns the displayed names of the service interfaces, by number: the network interface's name, or
// "service" if none is configured, with the number where two would be equal.
func (s ServiceConfig) InterfaceNames() []string {
	var out []string
	for i, a := range s.Interfaces() {
		name := a.Interface
		if name == "" {
			name = "service"
		}
		for slices.Contains(out, name) {
			name = fmt.Sprintf("%s-%d", name, i)
		}
		out = append(out, name)
	}
	return out
}

// Offered returns the checksums. It fails where Validate does.
func (s ServiceConfig) Offered() ([]lofamov1.Checksum, error) { return parseChecksums(s.Checksums) }

// GossipFirst reports whether a report's first attempt goes by gossip.
func (s ServiceConfig) GossipFirst() bool { return slices.Equal(s.Rails, gossipFirst) }

var (
	directFirst = []string{"direct", "gossip", "torus"}
	gossipFirst = []string{"gossip", "direct", "torus"}
)

func parseChecksums(names []string) ([]lofamov1.Checksum, error) {
	out := make([]lofamov1.Checksum, 0, len(names))
	for _, name := range names {
		a, err := servicenet.ParseChecksum(name)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// Addr returns the address at which service interface k of a node reaches the supervisor.
func (s SupervisorAddr) Addr(k int) string {
	if k = min(k, len(s.Alternates)); k > 0 {
		return s.Alternates[k-1]
	}
	return s.Report
}

// Masked returns the directions of MaskedLinks. It leaves out invalid ones.
func (a Agent) Masked() []grid.Direction {
	var out []grid.Direction
	for _, name := range a.MaskedLinks {
		if d, err := grid.ParseDirection(name); err == nil {
			out = append(out, d)
		}
	}
	return out
}

// PeerNode returns the name of the neighbour in that direction, and false if there is no link.
func (a Agent) PeerNode(dir grid.Direction) (fault.NodeID, bool) {
	c, d, err := a.Topology()
	if err != nil {
		return "", false
	}
	n, ok := d.Neighbour(c, dir)
	if !ok {
		return "", false
	}
	if id := a.Links[dir.String()].PeerNode; id != "" {
		return id, true
	}
	return fault.DefaultNodeID(n), true
}

// NetconsoleSenders returns the addresses from which a half accepts netconsole lines, with their nodes. A DNP half accepts only its own
// host's.
func (a Agent) NetconsoleSenders(h fault.Half) map[netip.Addr]fault.NodeID {
	out := make(map[netip.Addr]fault.NodeID)
	if h == fault.HalfDNP {
		if peer, err := netip.ParseAddrPort(a.Window.Peer); err == nil {
			out[peer.Addr()] = a.Node
		}
		return out
	}
	for name, l := range a.Links {
		dir, err := grid.ParseDirection(name)
		peer, err2 := netip.ParseAddrPort(l.Peer)
		if node, ok := a.PeerNode(dir); err == nil && err2 == nil && ok {
			out[peer.Addr()] = node
		}
	}
	for addr, node := range a.Netconsole.Senders {
		if at, err := netip.ParseAddr(addr); err == nil {
			out[at] = node
		}
	}
	return out
}
