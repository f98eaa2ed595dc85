package dnp

import (
	"bytes"
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/bundle"
	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// dnpBulk is the DNP half's part in transfers of large objects. The half has only the torus: objects that a supervisor
// requested through this node's own service network go back through the host half.
type dnpBulk struct {
	d       *dnpHalf
	server  *bundle.Server
	history *bundle.History
}

func newDNPBulk(d *dnpHalf, now time.Time) (*dnpBulk, error) {
	b := &dnpBulk{d: d, history: bundle.NewHistory(now)}
	var err error
	b.server, err = d.NewBulk(b, b.history, []bundle.Part{
		half.DeliveryPart(func() *lofamov1.DeliveryStatus {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.core.Delivery(time.Now())
		}),
		{Name: "links.txt", Make: d.linksText},
	})
	return b, err
}

// take passes a verified message for this half to its server. It runs under the half's mutex, and does not block.
func (b *dnpBulk) take(o servicenet.Opened) {
	if to, ok := bundle.Takes(o.Msg); ok && to == b.d.Origin() {
		b.server.Deliver(o)
	}
}

// Announce implements bundle.Ways.
func (b *dnpBulk) Announce(to bulk.Route, _ string, m *lofamov1.BulkAnnounce) {
	if e := b.d.SealAnnounce(m); e != nil {
		b.Chunk(to, "", e)
	}
}

// Chunk implements bundle.Ways.
func (b *dnpBulk) Chunk(to bulk.Route, _ string, packet []byte) {
	via := to.Via
	if via == "" {
		via = string(b.d.Config.Node)
	}
	if m, ok := b.d.Back(via, packet); ok {
		b.d.step(dnpcore.Back{Message: m})
	}
}

// linksText returns the counters and the sessions of the links.
func (d *dnpHalf) linksText() ([]byte, error) {
	d.mu.Lock()
	stats, hops, dropped, now := d.core.LinkStats(), d.core.HopStats(), d.core.BulkDropped(), time.Now()
	broken, broadcasts, procedures := d.core.ProtocolStats(), d.core.ExpressStats(), d.core.ProcedureStats()
	var out bytes.Buffer
	for i, dir := range grid.Directions() {
		if _, linked := d.core.LinkTo(dir); !linked {
			continue
		}
		if d.links[i] == nil {
			fmt.Fprintf(&out, "link %s is not open", dir)
			if err := d.unopened[i]; err != nil {
				fmt.Fprintf(&out, ": %v", err)
			}
			out.WriteByte('\n')
			continue
		}
		fmt.Fprintf(&out, "link %s to %s\n", dir, d.links[i].PeerAddr())
		heard := "never"
		if at := stats[i].LastHeard; !at.IsZero() {
			heard = now.Sub(at).Round(time.Microsecond).String() + " ago"
		}
		fmt.Fprintf(&out, "  heard    %s\n", heard)
		fmt.Fprintf(&out, "  machine  %+v\n", stats[i])
		fmt.Fprintf(&out, "  socket   %+v\n", d.links[i].Stats())
		for r := range halfcore.Rule(halfcore.Rules) {
			if n := broken[i][r]; n > 0 {
				fmt.Fprintf(&out, "  broken   rule %s of the channel protocol %d times\n", r, n)
			}
		}
	}
	fmt.Fprintf(&out, "messages passed on: %+v\nrouting (%s): %+v\nflow control: %+v\nin pieces: %+v\nmessages back dropped: %d\n"+
		"broadcasts: %+v\nprocedures: %+v\nmailbox: %+v\n", hops, d.Config.Routing, d.core.RouteStats(), d.core.FlowStats(now),
		d.core.ReorderStats(), dropped, broadcasts, procedures, d.box.Stats())
	d.mu.Unlock()
	return out.Bytes(), nil
}
