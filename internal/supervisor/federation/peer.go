package federation

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// PeerConfig configures Peers.
type PeerConfig struct {
	// Regions are the neighbouring regions: of each the addresses of its supervisors' gRPC services by id.
	Regions map[string]map[string]string
	// Foreign is the region of each node of theirs that borders on ours.
	Foreign map[fault.NodeID]string
	// Beside names the neighbouring regions of each node of ours that borders on any.
	Beside map[fault.NodeID][]string
	// TLS gives the configuration that admits only the supervisor of that id.
	TLS func(id string) (*tls.Config, error)
	// Answerer sends our nodes the acks that supervisors of other regions return for their nodes behind ours.
	Answerer engine.Answerer
	Metrics  *metrics.Metrics
	Logger   *slog.Logger
}

// Peers are the supervisors of neighbouring regions. Peers forwards evidence to them: statements of a border node about its foreign
// neighbours, and reports of a foreign node that one of our nodes relayed because the foreign node's host is dead.
//
// Each message goes unchanged to the leader of the other region, just as a follower forwards evidence to its own leader. Peers judges
// nothing: package replica decides whose statements count. Its methods may be called from any goroutine and do not block.
type Peers struct {
	cfg   PeerConfig
	ways  map[string]*replica.Forwarder // by region
	peers []*replica.Peers
}

// NewPeers dials the neighbouring regions. Run forwards the messages that the other methods queue.
func NewPeers(cfg PeerConfig) (*Peers, error) {
	b := &Peers{cfg: cfg, ways: make(map[string]*replica.Forwarder)}
	for name, addresses := range cfg.Regions {
		peers, err := replica.Dial(addresses, cfg.TLS)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("region %s: %w", name, err), b.Close())
		}
		b.peers = append(b.peers, peers)
		b.ways[name] = replica.NewForwarder(replica.ForwarderConfig{
			Peers: peers, Leaders: newRotation(addresses), Answerer: foreignOnly{cfg}, Confirm: true,
			Metrics: cfg.Metrics, Logger: cfg.Logger.With("region", name),
		})
	}
	return b, nil
}

// Run works until the context ends.
func (b *Peers) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range b.peers {
		wg.Go(func() { p.Run(ctx) })
	}
	for _, w := range b.ways {
		wg.Go(func() { w.Run(ctx) })
	}
	wg.Wait()
}

// Close closes the connections.
func (b *Peers) Close() error {
	var errs []error
	for _, p := range b.peers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Known reports whether a node belongs to another region and borders on ours.
func (b *Peers) Known(id fault.NodeID) bool { return b.cfg.Foreign[id] != "" }

// Witness forwards a message of one of our nodes to the regions that the node borders on.
func (b *Peers) Witness(id fault.NodeID, req *lofamov1.ForwardRequest, reports *servicenet.Reports, arrived time.Time) {
	for _, name := range b.cfg.Beside[id] {
		if w := b.ways[name]; w != nil {
			// Each has a request of its own, for the time in its queue is written into it.
			w.Forward(&lofamov1.ForwardRequest{Envelope: req.GetEnvelope(), From: req.GetFrom(), Socket: req.GetSocket(),
				Path: req.GetPath(), Name: req.GetName()}, reports, arrived)
		}
	}
}

// Theirs forwards messages of a node of another region. False: the queue is full, or the node does not border on
// ours.
func (b *Peers) Theirs(id fault.NodeID, req *lofamov1.ForwardRequest, reports *servicenet.Reports, arrived time.Time) bool {
	w := b.ways[b.cfg.Foreign[id]]
	return w != nil && w.Forward(req, reports, arrived)
}

// Verdicts sends the neighbouring regions the failed halves of our nodes.
func (b *Peers) Verdicts(failed map[fault.NodeID]awareness.ForeignVerdict) {
	for name, w := range b.ways {
		out := &lofamov1.BorderVerdicts{}
		for _, id := range slices.Sorted(maps.Keys(failed)) {
			if slices.Contains(b.cfg.Beside[id], name) {
				out.Failed = append(out.Failed, &lofamov1.BorderVerdict{Node: string(id), Host: failed[id].Host, Dnp: failed[id].DNP})
			}
		}
		w.Verdicts(out)
	}
}

// Of converts a region's verdicts into one verdict for each of its nodes that borders on ours.
func (b *Peers) Of(region string, v *lofamov1.BorderVerdicts) []awareness.ForeignVerdict {
	said := make(map[fault.NodeID]*lofamov1.BorderVerdict)
	for _, f := range v.GetFailed() {
		said[fault.NodeID(f.GetNode())] = f
	}
	var out []awareness.ForeignVerdict
	for _, id := range slices.Sorted(maps.Keys(b.cfg.Foreign)) {
		if b.cfg.Foreign[id] == region {
			out = append(out, awareness.ForeignVerdict{Node: id, Host: said[id].GetHost(), DNP: said[id].GetDnp()})
		}
	}
	return out
}

// Watched is the source of changes to the own map.
type Watched interface {
	Watch(ctx context.Context, after uint64) <-chan store.Update
}

// Tell sends the neighbouring regions the verdicts on our border nodes, after every change and once every period,
// until the leadership's context ends. now returns the map entries of the given nodes.
func (b *Peers) Tell(ctx context.Context, period time.Duration, w Watched,
	now func(context.Context, []fault.NodeID) ([]view.Entry, error)) {
	ids := slices.Sorted(maps.Keys(b.cfg.Beside))
	tick := time.NewTicker(period)
	defer tick.Stop()
	for ctx.Err() == nil {
		wctx, cancel := context.WithCancel(ctx)
		if err := b.tell(wctx, tick.C, w.Watch(wctx, 0), ids, now); err != nil && ctx.Err() == nil {
			b.cfg.Logger.Debug("the neighbouring regions are not told", "err", err)
		}
		cancel()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// tell follows one watch; the channel's first update says that the watch is established.
func (b *Peers) tell(ctx context.Context, tick <-chan time.Time, updates <-chan store.Update, ids []fault.NodeID,
	now func(context.Context, []fault.NodeID) ([]view.Entry, error)) error {
	<-updates
	entries, err := now(ctx, ids)
	if err != nil {
		return err
	}
	failed := make(map[fault.NodeID]awareness.ForeignVerdict)
	for _, e := range entries {
		for _, c := range e.Status.Components {
			note(failed, e.Status.ID, c.Component.String(), c.State == fault.Failed)
		}
	}
	for {
		b.Verdicts(failed)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick:
		case u, ok := <-updates:
			if !ok || u.Err != nil {
				return u.Err
			}
			for _, ev := range u.Events {
				if _, ours := b.cfg.Beside[fault.NodeID(ev.GetNode())]; ours {
					noteEvent(failed, ev)
				}
			}
		}
	}
}

// noteEvent records the verdict of a change. The recovery event of a half has its state too, but that of an earlier moment.
func noteEvent(failed map[fault.NodeID]awareness.ForeignVerdict, ev *lofamov1.Event) {
	if ev.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED {
		note(failed, fault.NodeID(ev.GetNode()), ev.GetComponent(), ev.GetTo() == lofamov1.State_FAILED)
	}
}

// note records a half's verdict.
func note(failed map[fault.NodeID]awareness.ForeignVerdict, id fault.NodeID, component string, is bool) {
	v := failed[id]
	v.Node = id
	switch component {
	case fault.ComponentHost.String():
		v.Host = is
	case fault.ComponentDNP.String():
		v.DNP = is
	default:
		return
	}
	if failed[id] = v; !v.Host && !v.DNP {
		delete(failed, id)
	}
}

// foreignOnly passes only acks for nodes of other regions, which we reach through ours. Our own leader
// acknowledges our own nodes' reports: a copy in another region must not free their logs.
type foreignOnly struct{ cfg PeerConfig }

// Answer implements engine.Answerer.
func (f foreignOnly) Answer(to engine.To, ack *lofamov1.Ack) {
	if f.cfg.Foreign[fault.NodeID(ack.GetNode())] != "" {
		f.cfg.Answerer.Answer(to, ack)
	}
}

// rotation tries the replicas in turn to find the leader: another region's election is not ours to watch.
type rotation struct {
	ids   []string
	never chan struct{}

	mu sync.Mutex
	at int
}

func newRotation(addresses map[string]string) *rotation {
	r := &rotation{never: make(chan struct{})}
	for id := range addresses {
		r.ids = append(r.ids, id)
	}
	slices.SortFunc(r.ids, cmp.Compare[string])
	return r
}

// Leader implements replica.LeaderSource: each call names the next replica.
func (r *rotation) Leader() (string, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.ids[r.at%len(r.ids)]
	r.at++
	return id, r.never
}
