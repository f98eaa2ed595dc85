package host

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"

	"github.com/lofamo/lofamo/internal/agent/bundle"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// hostBulk is the host half's part in transfers of large objects. It serves its own objects, and it is the gateway by
// which other nodes' objects leave the torus. Only the making of two parts takes the half's mutex.
type hostBulk struct {
	h       *hostHalf
	server  *bundle.Server
	history *bundle.History

	mu    sync.Mutex
	used  time.Time        // when the machine last learned of use
	heard map[string]uint8 // by supervisor: the service interface by which its last message came
}

func newHostBulk(h *hostHalf, now time.Time) (*hostBulk, error) {
	b := &hostBulk{h: h, history: bundle.NewHistory(now), heard: map[string]uint8{}}
	var err error
	b.server, err = h.NewBulk(b, b.history, []bundle.Part{
		half.DeliveryPart(func() *lofamov1.DeliveryStatus {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.core.Delivery(time.Now())
		}),
		{Name: "metrics.txt", Make: h.metricsText},
	})
	return b, err
}

// take handles a verified message. It records the sender's address and passes the message to the server of this half
// or of the DNP half.
func (b *hostBulk) take(o servicenet.Opened, path fault.Path, k uint8) {
	if path == fault.PathDirect && o.Role == servicenet.RoleSupervisor {
		b.mu.Lock()
		b.heard[o.Name] = k
		b.mu.Unlock()
	}
	to, ok := bundle.Takes(o.Msg)
	switch {
	case !ok:
	case to == b.h.Origin():
		b.server.Deliver(o)
	case to.Node == b.h.Config.Node && path != fault.PathTorus: // else it came from that half
		b.h.toDNP(halfcore.Relay{Kind: halfcore.RelayDown, Limit: b.h.MaxHops(), Dst: b.h.Topo.Coord, Envelope: o.Raw})
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
	if e := b.h.SealAnnounce(m); e != nil {
		b.send(to, supervisor, e)
	}
}

// Chunk implements rendezvous.Ways.
func (b *hostBulk) Chunk(to bulk.Route, supervisor string, packet []byte) {
	b.use()
	b.send(to, supervisor, packet)
}

// use reports traffic of large objects to the self-test, once a second at most.
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
		if m, ok := b.h.Back(to.Via, packet); ok {
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

// passOn forwards a reply from the torus to the supervisors. A chunk goes unchanged to the supervisor that it names.
// An announcement names none: it goes to all, signed by this half with the number of hops that it took.
func (b *hostBulk) passOn(m halfcore.Relay, held time.Duration) {
	if bulk.IsChunk(m.Envelope) {
		if id, err := bulk.Target(m.Envelope); err == nil {
			b.toSupervisor(id, m.Envelope)
		}
		return
	}
	hops := make([]fault.Hop, 0, len(m.Hops)+1)
	for _, hop := range m.Hops {
		hops = append(hops, fault.Hop{Node: b.h.Around.Load().ID(hop.Coord), Half: hop.Half, Held: hop.Held})
	}
	hops = append(hops, fault.Hop{Node: b.h.Config.Node, Half: fault.HalfHost, Held: max(held, 0)})
	e, err := servicenet.SealRelayed(m.Envelope, hops, b.h.Signer)
	if err != nil {
		b.h.Log.Debug("message back refused", "err", err)
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

// metricsText returns the current text of the metrics endpoint, whether or not the endpoint is enabled.
func (h *hostHalf) metricsText() ([]byte, error) {
	req, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	var w half.TextWriter
	h.metrics().ServeHTTP(&w, req)
	return w.Bytes(), nil
}
