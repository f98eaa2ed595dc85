package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
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

// interfaceName, like the other regular expressions of this package, compiles on its first use, so that most starts skip
// it.
var interfaceName = lazily(`^[^/\s:]{1,15}$`)

func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// problems collects errors, each as "field: given X: want Y".
type problems struct{ errs []error }

func (p *problems) bad(field string, given any, want string, args ...any) {
	if s, ok := given.(string); ok && s == "" {
		given = "nothing"
	}
	p.errs = append(p.errs, errors.New(ShortTimes(fmt.Sprintf("%s: given %v: want %s", field, given, fmt.Sprintf(want, args...)))))
}

// zeroUnits matches the units that Go appends to a duration of whole hours or minutes.
var zeroUnits = lazily(`(\d)(h0m0s|m0s)\b`)

// ShortTimes writes the durations in a text as people give them: 1h and 5m, not 1h0m0s and 5m0s.
func ShortTimes(text string) string {
	return zeroUnits().ReplaceAllStringFunc(text, func(s string) string { return s[:2] })
}

// wrap adds an error that already names the given and the expected value.
func (p *problems) wrap(field string, err error) {
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("%s: %w", field, err))
	}
}

// within adds the errors of a part of the configuration, which name their own fields.
func (p *problems) within(field string, err error) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			p.errs = append(p.errs, fmt.Errorf("%s.%w", field, e))
		}
		return
	}
	p.wrap(field, err)
}

func (p *problems) add(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

func (p *problems) err() error { return errors.Join(p.errs...) }

func (p *problems) cluster(v string) {
	if !fault.IsNameWith(v, false, "-.") {
		p.bad("cluster", v, "1 to 63 of a-z, 0-9, '-' and '.', the first and last a letter or digit")
	}
}

func (p *problems) name(field, v string) {
	if !fault.IsName(v) {
		p.bad(field, v, "1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit")
	}
}

func (p *problems) path(field, v string) {
	if v == "" {
		p.bad(field, v, "the path of a file")
	}
}

func (p *problems) oneOf(field, v string, want ...string) {
	if !slices.Contains(want, v) {
		p.bad(field, v, "one of %s", strings.Join(want, ", "))
	}
}

func (p *problems) iface(field, v string) {
	if v != "" && !interfaceName().MatchString(v) {
		p.bad(field, v, "a network interface's name, 1 to 15 characters, or nothing")
	}
}

func (p *problems) log(l LogConfig) {
	p.oneOf("log.level", l.Level, "debug", "info", "warn", "error")
	p.oneOf("log.format", l.Format, "text", "json")
}

// listen checks an address to listen on.
func (p *problems) listen(field, v string) (netip.AddrPort, bool) {
	ap, err := netip.ParseAddrPort(v)
	if err != nil || ap.Port() == 0 {
		p.bad(field, v, `"ip:port", port 1 to 65535`)
		return ap, false
	}
	return ap, true
}

// remote checks an address to send to.
func (p *problems) remote(field, v string) {
	if ap, ok := p.listen(field, v); ok && ap.Addr().IsUnspecified() {
		p.bad(field, v, "the address of one host, not %s", ap.Addr())
	}
}

func (p *problems) url(field, v string) {
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		p.bad(field, v, `"https://host:port"`)
	}
}

// webURL is where browsers go: by TLS, or to this very machine.
func (p *problems) webURL(field, v string) {
	u, err := url.Parse(v)
	if err == nil && u.Host != "" && u.User == nil && (u.Path == "" || u.Path == "/") && u.RawQuery == "" && u.Fragment == "" {
		ip, notIP := netip.ParseAddr(u.Hostname())
		if u.Scheme == "https" || u.Scheme == "http" && notIP == nil && ip.IsLoopback() {
			return
		}
	}
	p.bad(field, v, "https://host:port, or http://IP:port of a loopback address")
}

func (p *problems) checksums(list string, names []string) {
	if len(names) == 0 {
		p.bad(list, "", "at least one, such as %s", servicenet.ChecksumName(servicenet.DefaultChecksum))
	}
	for i, name := range names {
		field := fmt.Sprintf("%s[%d]", list, i)
		if _, err := servicenet.ParseChecksum(name); err != nil {
			p.wrap(field, err)
		}
		if slices.Contains(names[:i], name) {
			p.bad(field, name, "each checksum once")
		}
	}
}

func (p *problems) gossip(prefix, listen, keyFile string, joins []string) {
	if listen == "" {
		return
	}
	p.listen(prefix+"gossipListen", listen)
	p.path(prefix+"gossipKeyFile", keyFile)
	for i, j := range joins {
		p.remote(fmt.Sprintf("%sgossipJoin[%d]", prefix, i), j)
	}
}

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
