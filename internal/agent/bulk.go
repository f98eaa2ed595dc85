package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/bundle"
	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/hostcore"
	"github.com/lofamo/lofamo/internal/agent/relay"
	"github.com/lofamo/lofamo/internal/agent/rendezvous"
	"github.com/lofamo/lofamo/internal/version"
)

// objectBundle is the name by which supervisors ask for a diagnostic bundle.
const objectBundle = "bundle"

// mailboxBurst is how many chunks may go into the other half's mailbox at once. The kernel may hold no
// more than 10 datagrams there (net.unix.max_dgram_qlen), and reports need room too.
const mailboxBurst = 4

// dnpDirectRate bounds what the DNP half sends straight, in chunks a second: all of that goes through the
// mailbox of its host half.
const dnpDirectRate = 1000

// newBulk makes the server of a half's large objects.
func (c *common) newBulk(ways rendezvous.Ways, history *bundle.History, parts []bundle.Part) (*rendezvous.Server, error) {
	cfg := rendezvous.DefaultConfig()
	cfg.Origin, cfg.Dir, cfg.Ways, cfg.Logger = c.self(), c.cfg.StateDir, ways, c.log
	cfg.Sender.TorusBurst = mailboxBurst
	if c.half == fault.HalfDNP {
		cfg.Sender.DirectRate, cfg.Sender.DirectBurst = dnpDirectRate, mailboxBurst
	}
	cfg.Objects = map[string]rendezvous.Object{objectBundle: {
		Name: func(now time.Time) string { return bundle.FileName(c.self(), now) },
		Gather: func(ctx context.Context, maxSize uint64, w io.Writer) error {
			return bundle.Gather(ctx, c.bundleConfig(history, parts), maxSize, w)
		},
	}}
	return rendezvous.New(cfg)
}

func (c *common) bundleConfig(history *bundle.History, parts []bundle.Part) bundle.Config {
	b := bundle.DefaultConfig(c.self())
	b.Version, b.Proc = version.Get(), c.cfg.Sensors.Procfs
	b.Logs = bundle.OwnLogs("/proc") // of this process, whatever tree the sensors read
	b.Parts = append(bundle.Registers(c.statePath(RegisterFile), c.topo.Links),
		bundle.Part{Name: "register-history.txt", Make: history.Text},
		// The configuration names key files, and holds no key.
		bundle.Part{Name: "config.yaml", Make: func() ([]byte, error) { return yaml.Marshal(c.cfg) }})
	b.Parts = append(b.Parts, parts...)
	return b
}

func deliveryPart(get func() *lofamov1.DeliveryStatus) bundle.Part {
	return bundle.Part{Name: "delivery.json", Make: func() ([]byte, error) {
		return protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true, Multiline: true}.Marshal(get())
	}}
}

// hostBulk is what the host half does about large objects: it serves its own, and is the gateway by which
// those of others leave the torus. Nothing of it takes the half's mutex but the making of two parts.
type hostBulk struct {
	h       *hostHalf
	server  *rendezvous.Server
	history *bundle.History

	mu    sync.Mutex
	used  time.Time        // when the machine was last told so
	heard map[string]uint8 // by supervisor: the service interface by which its last message came
}

func newHostBulk(h *hostHalf, now time.Time) (*hostBulk, error) {
	b := &hostBulk{h: h, history: bundle.NewHistory(now), heard: map[string]uint8{}}
	var err error
	b.server, err = h.newBulk(b, b.history, []bundle.Part{
		deliveryPart(func() *lofamov1.DeliveryStatus {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.core.Delivery(time.Now())
		}),
		{Name: "metrics.txt", Make: h.metricsText},
	})
	return b, err
}

// take looks at a verified message: where its sender was heard, and whether it is for the server here or
// that of the DNP half.
func (b *hostBulk) take(o servicenet.Opened, path fault.Path, k uint8) {
	if path == fault.PathDirect && o.Role == servicenet.RoleSupervisor {
		b.mu.Lock()
		b.heard[o.Name] = k
		b.mu.Unlock()
	}
	to, ok := rendezvous.Takes(o.Msg)
	switch {
	case !ok:
	case to == b.h.self():
		b.server.Deliver(o)
	case to.Node == b.h.cfg.Node && path != fault.PathTorus: // else it came from that half
		b.h.toDNP(relay.Message{Kind: relay.Down, Limit: b.h.maxHops(), Dst: b.h.topo.Coord, Envelope: o.Raw})
	}
}

func (b *hostBulk) interfaceTo(supervisor string) uint8 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard[supervisor]
}

// Announce implements rendezvous.Ways.
func (b *hostBulk) Announce(to bulk.Route, supervisor string, m *lofamov1.BulkAnnounce) {
	b.use()
	if e := b.h.sealAnnounce(m); e != nil {
		b.send(to, supervisor, e)
	}
}

// Chunk implements rendezvous.Ways.
func (b *hostBulk) Chunk(to bulk.Route, supervisor string, packet []byte) {
	b.use()
	b.send(to, supervisor, packet)
}

// use tells the self-test, once a second at most, that large objects are sent.
func (b *hostBulk) use() {
	now := time.Now()
	b.mu.Lock()
	fresh := now.Sub(b.used) >= time.Second
	if fresh {
		b.used = now
	}
	b.mu.Unlock()
	if fresh {
		b.h.step(hostcore.Used{Kind: selftest.Bulk})
	}
}

func (b *hostBulk) send(to bulk.Route, supervisor string, packet []byte) {
	if to.Via != "" {
		if m, ok := b.h.back(to.Via, packet); ok {
			b.h.toDNP(m)
		}
		return
	}
	if addr, err := netip.ParseAddrPort(to.ReplyTo); err == nil { // checked when the request was opened
		_ = b.h.nets[b.interfaceFor(supervisor, addr)].Send(addr, packet) // counted there, and asked for again
	}
}

// interfaceFor returns the service interface that reaches that address of a supervisor: its last message
// may have come by another, with an acknowledgement.
func (b *hostBulk) interfaceFor(supervisor string, addr netip.AddrPort) uint8 {
	last := b.interfaceTo(supervisor)
	if b.h.targets[last][supervisor] == addr {
		return last
	}
	for k, targets := range b.h.targets {
		if targets[supervisor] == addr {
			return uint8(k)
		}
	}
	return last
}

// passOn passes what came back by the torus on to the supervisors: a chunk, as it is, to the one that it
// names, an announcement, which names none, to all, signed by this half with the hops that it took.
func (b *hostBulk) passOn(m relay.Message, held time.Duration) {
	if bulk.IsChunk(m.Envelope) {
		if id, err := bulk.Target(m.Envelope); err == nil {
			b.toSupervisor(id, m.Envelope)
		}
		return
	}
	hops := make([]fault.Hop, 0, len(m.Hops)+1)
	for _, hop := range m.Hops {
		hops = append(hops, fault.Hop{Node: b.h.around.Load().ID(hop.Coord), Half: hop.Half, Held: hop.Held})
	}
	hops = append(hops, fault.Hop{Node: b.h.cfg.Node, Half: fault.HalfHost, Held: max(held, 0)})
	e, err := servicenet.SealRelayed(m.Envelope, hops, b.h.signer)
	if err != nil {
		b.h.log.Debug("message back refused", "err", err)
		return
	}
	for _, id := range b.h.ids {
		b.toSupervisor(id, e)
	}
}

func (b *hostBulk) toSupervisor(id string, packet []byte) {
	k := b.interfaceTo(id)
	if to, ok := b.h.targets[k][id]; ok {
		_ = b.h.nets[k].Send(to, packet) // counted there, and asked for again
	}
}

func (c *common) sealAnnounce(m *lofamov1.BulkAnnounce) []byte {
	e, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_BulkAnnounce{BulkAnnounce: m}}, c.signer)
	if err != nil {
		c.log.Error("announcement not sent", "err", err)
		return nil
	}
	return e
}

// back is a message to the gateway of that name.
func (c *common) back(via string, packet []byte) (relay.Message, bool) {
	dst, ok := c.around.Load().At(fault.NodeID(via))
	if !ok || len(packet) > relay.MaxEnvelope {
		c.log.Debug("message back not sent", "via", via, "bytes", len(packet))
		return relay.Message{}, false
	}
	return relay.Message{Kind: relay.Back, Limit: c.maxHops(), Dst: dst, Envelope: packet}, true
}

// dnpBulk is what the DNP half does about large objects. It has the torus only: what a supervisor asked
// for by this node's own service network goes back by the own host half.
type dnpBulk struct {
	d       *dnpHalf
	server  *rendezvous.Server
	history *bundle.History
}

func newDNPBulk(d *dnpHalf, now time.Time) (*dnpBulk, error) {
	b := &dnpBulk{d: d, history: bundle.NewHistory(now)}
	var err error
	b.server, err = d.newBulk(b, b.history, []bundle.Part{
		deliveryPart(func() *lofamov1.DeliveryStatus {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.core.Delivery(time.Now())
		}),
		{Name: "links.txt", Make: d.linksText},
	})
	return b, err
}

// take hands a verified message that is for this half to its server. It runs under the half's mutex, and
// does not block.
func (b *dnpBulk) take(o servicenet.Opened) {
	if to, ok := rendezvous.Takes(o.Msg); ok && to == b.d.self() {
		b.server.Deliver(o)
	}
}

// Announce implements rendezvous.Ways.
func (b *dnpBulk) Announce(to bulk.Route, _ string, m *lofamov1.BulkAnnounce) {
	if e := b.d.sealAnnounce(m); e != nil {
		b.Chunk(to, "", e)
	}
}

// Chunk implements rendezvous.Ways.
func (b *dnpBulk) Chunk(to bulk.Route, _ string, packet []byte) {
	via := to.Via
	if via == "" {
		via = string(b.d.cfg.Node)
	}
	if m, ok := b.d.back(via, packet); ok {
		b.d.step(dnpcore.Back{Message: m})
	}
}

// linksText is what the links have counted and their sessions.
func (d *dnpHalf) linksText() ([]byte, error) {
	d.mu.Lock()
	stats, hops, dropped, now := d.core.LinkStats(), d.core.HopStats(), d.core.BulkDropped(), time.Now()
	broken, broadcasts, procedures := d.core.ProtocolStats(), d.core.ExpressStats(), d.core.ProcedureStats()
	var out bytes.Buffer
	for i, dir := range grid.Directions() {
		if d.links[i] == nil {
			continue
		}
		fmt.Fprintf(&out, "link %s to %s\n", dir, d.cfg.Links[dir.String()].Peer)
		heard := "never"
		if at := stats[i].LastHeard; !at.IsZero() {
			heard = now.Sub(at).Round(time.Microsecond).String() + " ago"
		}
		fmt.Fprintf(&out, "  heard    %s\n", heard)
		fmt.Fprintf(&out, "  machine  %+v\n", stats[i])
		fmt.Fprintf(&out, "  socket   %+v\n", d.links[i].Stats())
		for r := range dnpcore.Rule(dnpcore.Rules) {
			if n := broken[i][r]; n > 0 {
				fmt.Fprintf(&out, "  broken   rule %s of the channel protocol %d times\n", r, n)
			}
		}
	}
	fmt.Fprintf(&out, "messages passed on: %+v\nrouting (%s): %+v\nflow control: %+v\nin pieces: %+v\nmessages back dropped: %d\nbroadcasts: %+v\nprocedures: %+v\nmailbox: %+v\n", hops, d.cfg.Routing, d.core.RouteStats(), d.core.FlowStats(now), d.core.ReorderStats(), dropped, broadcasts, procedures, d.box.Stats())
	d.mu.Unlock()
	return out.Bytes(), nil
}

// metricsText is what the metrics endpoint would answer now, whether there is one or not.
func (h *hostHalf) metricsText() ([]byte, error) {
	req, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	var w textWriter
	h.metrics().ServeHTTP(&w, req)
	return w.Bytes(), nil
}

// textWriter keeps what a handler answers.
type textWriter struct {
	bytes.Buffer
	header http.Header
}

// Header implements http.ResponseWriter.
func (w *textWriter) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter.
func (w *textWriter) WriteHeader(int) {}
