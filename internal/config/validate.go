package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/spool"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
)

// maxStateDir leaves room for the longest socket name below it: sun_path is 108 bytes with its
// closing zero.
const maxStateDir = 90

// Ranges of the torus frame, in bytes: a frame must hold a signed report, and packets end at 8,224
// (seed 001 §IV-B).
const (
	minMTU = 1280
	maxMTU = 8224
)

// Bounds of the service network's settings.
const (
	maxAlternates = 7 // besides the first: interfaces of a node, addresses of a supervisor
)

// Validate names every bad field at once.
func (a Agent) Validate() error {
	p := &problems{}
	p.cluster(a.Cluster)
	dims, derr := grid.ParseTorus(a.Dims)
	if !a.Spare || a.Dims != "" { // a spare learns its torus
		p.wrap("dims", derr)
	}
	coord, cerr := grid.ParseCoord(a.Coord)
	if cerr == nil && derr == nil {
		cerr = dims.Check(coord)
	}
	if !a.Spare {
		p.wrap("coord", cerr)
	} else if a.Coord != "" {
		p.bad("coord", a.Coord, "nothing: a spare learns its place")
	}
	if a.Node != "" || cerr == nil || a.Spare {
		p.name("node", string(a.Node))
	}
	_, err := a.Timing()
	p.add(err)
	p.path("tls.ca", a.TLS.CA)
	a.validateHalves(p)
	directions := dims.Links()
	if !a.Spare && cerr == nil {
		directions = dims.LinksOf(coord)
	}
	a.validateLinks(p, dims, directions)
	p.listen("service.listen", a.Service.Listen)
	p.gossip("service.", a.Service.GossipListen, a.Service.GossipKeyFile, a.Service.GossipJoin)
	a.validateSupervisors(p)
	a.validateOwn(p)
	return p.err()
}

// ValidateOwn checks the settings that a node has of its own, whether it enrols or not.
func (a Agent) ValidateOwn() error {
	p := &problems{}
	a.validateOwn(p)
	return p.err()
}

// validateOwn checks the fields that do not depend on the node's place, keys and supervisors.
func (a Agent) validateOwn(p *problems) {
	if a.StateDir == "" || len(a.StateDir) > maxStateDir {
		p.bad("stateDir", fmt.Sprintf("%q", a.StateDir), "a directory's path of 1 to %d bytes: sockets are made below it", maxStateDir)
	}
	p.diskWarn(a.DiskWarnBytes)
	p.oneOf("platform", a.Platform, PlatformSharedKernel, PlatformDPU)
	if a.MTU < minMTU || a.MTU > maxMTU {
		p.bad("mtu", a.MTU, "%d to %d bytes", minMTU, maxMTU)
	}
	if a.MaxHops < 0 || a.MaxHops > 255 {
		p.bad("maxHops", a.MaxHops, "1 to 255, or 0 for the number that the torus needs")
	}
	p.oneOf("routing", a.Routing, routing.Chaos.String(), routing.MinimalAdaptive.String(), routing.DimensionOrder.String())
	a.Service.validate(p)
	p.add(a.Sensors.Validate("sensors."))
	a.Recovery.validate(p)
	a.HardwareWatchdog.validate(p, a.Window)
	a.validateNetconsole(p)
	a.SelfTest.validate(p)
	// Written so that NaN is refused too.
	if b := a.Processor.Budget; b != 0 && !(b >= 0.1 && b <= 100) {
		p.bad("processor.budget", b, "0.1 to 100 percent of one core, or 0 for no budget")
	}
	if s := a.Procedure.Start; s != ProcedureNever && s != ProcedureOnEvidence {
		p.bad("procedure.start", s, "%s or %s", ProcedureNever, ProcedureOnEvidence)
	}
	a.Jobs.validate(p)
	a.Responses.validate(p)
	if a.HTTP != "" {
		p.listen("http", a.HTTP)
		tcp := taken{}
		tcp.add(p, "service.gossipListen", a.Service.GossipListen)
		tcp.add(p, "http", a.HTTP)
	}
	p.log(a.Log)
}

func (s ServiceConfig) validate(p *problems) {
	p.iface("service.interface", s.Interface)
	if n := len(s.Alternates); n > maxAlternates {
		p.bad("service.alternates", fmt.Sprintf("%d", n), "at most %d", maxAlternates)
	}
	for i, a := range s.Alternates {
		field := fmt.Sprintf("service.alternates[%d]", i)
		p.listen(field+".listen", a.Listen)
		p.iface(field+".interface", a.Interface)
	}
	if b := s.SpoolBytes; b != 0 && (b < spool.MinSize || b > spool.MaxSize) {
		p.bad("service.spoolBytes", b, "0 (no spool), or %d to %d", spool.MinSize, spool.MaxSize)
	}
	p.checksums("service.checksums", s.Checksums)
	p.rails(s)
}

func (a Agent) validateSupervisors(p *problems) {
	if len(a.Supervisors) == 0 {
		p.bad("supervisors", "", "at least one")
	}
	seen := map[string]bool{}
	for i, s := range a.Supervisors {
		field := fmt.Sprintf("supervisors[%d]", i)
		p.name(field+".id", s.ID)
		if seen[s.ID] {
			p.bad(field+".id", s.ID, "each supervisor once")
		}
		seen[s.ID] = true
		p.remote(field+".report", s.Report)
		p.alternates(field+".report", s.Report, field+".alternates", s.Alternates)
		a.validateFamilies(p, field, s)
	}
}

// validateFamilies checks that each service interface can send to the address at which it reaches a
// supervisor: a socket on an address of one family sends to that family, and one on [::] to both.
func (a Agent) validateFamilies(p *problems, field string, s SupervisorAddr) {
	for k, i := range a.Service.Interfaces() {
		from, ferr := netip.ParseAddrPort(i.Listen)
		to, terr := netip.ParseAddrPort(s.Addr(k))
		if ferr != nil || terr != nil || from.Addr() == netip.IPv6Unspecified() || from.Addr().Unmap().Is4() == to.Addr().Unmap().Is4() {
			continue // or named already
		}
		name := field + ".report"
		if n := min(k, len(s.Alternates)); n > 0 {
			name = fmt.Sprintf("%s.alternates[%d]", field, n-1)
		}
		p.bad(name, s.Addr(k), "an address of the family of %s, by which service interface %d sends to it", i.Listen, k)
	}
}

func (c DiagnosisConfig) validate(p *problems) {
	c = c.Filled()
	if c.Auto != DiagnosisOff && c.Auto != DiagnosisLinks {
		p.bad("diagnosis.auto", c.Auto, DiagnosisOff+" or "+DiagnosisLinks)
	}
	if d := c.After.D(); d < time.Second || d > 24*time.Hour {
		p.bad("diagnosis.after", d.String(), "1s to 24h")
	}
	if d := c.MinInterval.D(); d < time.Minute || d > 168*time.Hour {
		p.bad("diagnosis.minInterval", d.String(), "1m to 168h")
	}
	if d := c.Pause.D(); d < time.Second || d > time.Hour {
		p.bad("diagnosis.pause", d.String(), "1s to 1h")
	}
	if c.Drain && c.Auto == DiagnosisOff {
		p.bad("diagnosis.drain", c.Drain, "false with diagnosis.auto: "+DiagnosisOff)
	}
}

// CheckDomainLabels checks the key domainLabels.
func CheckDomainLabels(keys []string) error {
	p := &problems{}
	fault.CheckDomainLabels(keys, p.wrap)
	return errors.Join(p.errs...)
}

// Validate names every bad field at once.
func (s Supervisor) Validate() error {
	p := &problems{}
	p.cluster(s.Cluster)
	p.name("id", s.ID)
	dims, derr := grid.ParseTorus(s.Dims)
	p.wrap("dims", derr)
	s.validateNodes(p, dims, derr == nil)
	s.validateSpares(p)
	s.validateRegions(p)
	p.errs = append(p.errs, CheckDomainLabels(s.DomainLabels))
	if d := s.Foresight.D(); d != 0 && (d < time.Minute || d > 168*time.Hour) {
		p.bad("foresight", d.String(), "0s (none), or 1m to 168h")
	}
	if d := s.StopTime(); d != 0 && (d < time.Second || d > 24*time.Hour) {
		p.bad("stopLimit", d.String(), "0s (none), or 1s to 24h")
	}
	if d := s.IncidentQuiet.D(); d < 0 || d > 24*time.Hour {
		p.bad("incidentQuiet", d.String(), "0s to 24h")
	}
	s.Diagnosis.validate(p)
	s.Responses.validate(p)
	s.Kubernetes.validate(p)
	udp, tcp := taken{}, taken{}
	s.validateReport(p, udp)
	p.checksums("checksums", s.Checksums)
	p.listen("grpc", s.GRPC)
	tcp.add(p, "grpc", s.GRPC)
	if s.HTTP != "" {
		p.listen("http", s.HTTP)
		tcp.add(p, "http", s.HTTP)
	}
	s.Web.validate(p)
	if s.Web.Listen != "" {
		tcp.add(p, "web.listen", s.Web.Listen)
	}
	p.gossip("", s.GossipListen, s.GossipKeyFile, s.GossipJoin)
	udp.add(p, "gossipListen", s.GossipListen)
	if slices.Contains(s.ReportAlternates, s.GossipListen) && s.GossipListen != "" {
		p.bad("reportAlternates", s.GossipListen, "an address other than that of gossipListen")
	}
	tcp.add(p, "gossipListen", s.GossipListen)
	if s.DataDir == "" {
		p.bad("dataDir", "", "a directory's path")
	}
	p.diskWarn(s.DiskWarnBytes)
	s.validateEtcd(p)
	p.path("tls.ca", s.TLS.CA)
	p.path("tls.cert", s.TLS.Cert)
	p.path("tls.key", s.TLS.Key)
	if c := s.ECDSA; (c.Cert == "") != (c.Key == "") {
		p.bad("ecdsa.cert, ecdsa.key", c.Cert+", "+c.Key, "both or none")
	}
	s.Renewal.validate(p)
	s.Enrolment.validate(p, s.Renewal.Cert != "")
	if s.Enrolment.Listen != "" {
		tcp.add(p, "enrolment.listen", s.Enrolment.Listen)
	}
	s.validateReplicas(p)
	_, err := s.Timing()
	p.add(err)
	p.log(s.Log)
	return p.err()
}

// validateNodes checks that each place that is not empty has one node, with a unique name.
func (s Supervisor) validateNodes(p *problems, dims grid.Dims, haveDims bool) {
	ids, coords := map[fault.NodeID]int{}, map[grid.Coord]int{}
	for i, n := range s.Nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		c, err := grid.ParseCoord(n.Coord)
		if err == nil && haveDims {
			err = dims.Check(c)
		}
		p.wrap(field+".coord", err)
		if err == nil {
			if j, ok := coords[c]; ok {
				p.bad(field+".coord", n.Coord, "a place of its own: nodes[%d] has it", j)
			}
			coords[c] = i
		}
		if id := n.NodeID(); id != "" || err == nil {
			p.name(field+".id", string(id))
			if j, ok := ids[id]; ok {
				p.bad(field+".id", id, "a name of its own: nodes[%d] has it", j)
			}
			ids[id] = i
		}
		p.remote(field+".service", n.Service)
		p.alternates(field+".service", n.Service, field+".alternates", n.Alternates)
		p.labels(field, n.Labels)
	}
	if !haveDims {
		return
	}
	missing := dims.Nodes() - len(coords)
	if missing <= 0 {
		return
	}
	for at := range dims.All() {
		if _, ok := coords[at]; !ok {
			p.bad("nodes", fmt.Sprintf("%d places", len(coords)), "all %d of the %s torus: %s is missing", dims.Nodes(), dims, at)
			return
		}
	}
}

// validateSpares checks the nodes without a place.
func (s Supervisor) validateSpares(p *problems) {
	places := make(map[fault.NodeID]string, len(s.Nodes)+len(s.Spares))
	for i, n := range s.Nodes {
		places[n.NodeID()] = fmt.Sprintf("nodes[%d]", i)
	}
	for i, n := range s.Spares {
		field := fmt.Sprintf("spares[%d]", i)
		p.name(field+".id", string(n.ID))
		if other, ok := places[n.ID]; ok {
			p.bad(field+".id", n.ID, "a name of its own: %s has it", other)
		}
		places[n.ID] = field
		switch {
		case n.Service != "":
			p.remote(field+".service", n.Service)
			p.alternates(field+".service", n.Service, field+".alternates", n.Alternates)
		case len(n.Alternates) > 0:
			p.bad(field+".service", "", "the address of the first interface, since there are alternates")
		}
		p.labels(field, n.Labels)
	}
}

func (p *problems) labels(field string, labels map[string]string) {
	for _, err := range fault.CheckLabels(labels) {
		p.wrap(field+".labels", err)
	}
}

func (s Supervisor) validateReplicas(p *problems) {
	seen := map[string]bool{}
	for i, r := range s.Replicas {
		field := fmt.Sprintf("replicas[%d]", i)
		p.name(field+".id", r.ID)
		if seen[r.ID] {
			p.bad(field+".id", r.ID, "each replica once")
		}
		seen[r.ID] = true
		p.remote(field+".grpc", r.GRPC)
		if !s.Parent() {
			p.remote(field+".report", r.Report)
		}
		if r.HTTP != "" {
			p.remote(field+".http", r.HTTP)
		}
		if r.Web != "" {
			p.webURL(field+".web", r.Web)
		}
	}
	if !seen[s.ID] {
		p.bad("replicas", fmt.Sprintf("%d", len(s.Replicas)), "all replicas, %q itself included", s.ID)
	}
}

func (s Supervisor) validateEtcd(p *problems) {
	e := s.Etcd
	for i, u := range e.Endpoints {
		p.url(fmt.Sprintf("etcd.endpoints[%d]", i), u)
	}
	if e.KeepEvents < 100 || e.KeepEvents > 10_000_000 {
		p.bad("etcd.keepEvents", e.KeepEvents, "100 to 10000000")
	}
	if d := e.HistoryAge.D(); d < time.Minute || d > 8760*time.Hour {
		p.bad("etcd.historyAge", d, "1m to 8760h")
	}
	if e.HistoryBytes < 1<<20 || e.HistoryBytes > 4<<30 {
		p.bad("etcd.historyBytes", e.HistoryBytes, "%d to %d", 1<<20, 4<<30)
	}
	if e.KeepIncidents != 0 && (e.KeepIncidents < 10 || e.KeepIncidents > 1000) {
		p.bad("etcd.keepIncidents", e.KeepIncidents, "10 to 1000, or 0 for 1000")
	}
	if !s.Embedded() {
		return
	}
	name := e.Name
	if name == "" {
		name = s.ID
	}
	p.url("etcd.peerURL", e.PeerURL)
	p.url("etcd.clientURL", e.ClientURL)
	if !slices.Contains(strings.Split(e.InitialCluster, ","), name+"="+e.PeerURL) {
		p.bad("etcd.initialCluster", e.InitialCluster, `"NAME=URL,…" with %s=%s among them`, name, e.PeerURL)
	}
	p.oneOf("etcd.clusterState", e.ClusterState, "new", "existing")
	if d := e.CompactionRetention.D(); d < time.Minute || d > 168*time.Hour {
		p.bad("etcd.compactionRetention", d, "1m to 168h")
	}
	if e.QuotaBytes < 16<<20 || e.QuotaBytes > 8<<30 {
		p.bad("etcd.quotaBytes", e.QuotaBytes, "%d to %d", 16<<20, 8<<30)
	}
}

func (p *problems) rails(s ServiceConfig) {
	switch given := strings.Join(s.Rails, ", "); {
	case s.GossipFirst() && s.GossipListen == "":
		p.bad("service.rails", given, "service.gossipListen as well, or no rails")
	case len(s.Rails) > 0 && !s.GossipFirst() && !slices.Equal(s.Rails, directFirst):
		p.bad("service.rails", given, "%s; or %s", strings.Join(directFirst, ", "), strings.Join(gossipFirst, ", "))
	}
}
