// The bulk manager is the shell around a supervisor's bulk.Receivers: it fetches large objects from halves, directly
// or through the torus, whichever works, and streams them to the consumer. Every replica does so for itself: it
// talks to the node, and needs no leader.
//
// Transfers are few (BulkConfig.Most), and a slow consumer slows the node down. A transfer's memory is bounded by the
// receiver's buffer and a queue of packets. Further packets are dropped, and pulled again. The transfer logic is
// in pkg/servicenet/bulk.

package ingest

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// BulkSocket sends datagrams; it does not block.
type BulkSocket interface {
	Send(to netip.AddrPort, b []byte) error
}

// BulkPlace is where a node is reached, and from where.
type BulkPlace struct {
	Addr    netip.AddrPort
	Socket  BulkSocket
	ReplyTo string // the report address that Socket has
}

// BulkNames answers questions about the torus.
type BulkNames interface {
	Dims() grid.Dims
	All() []fault.NodeID
	Coord(fault.NodeID) (grid.Coord, bool)
	// Services are all service addresses of a node; Owner is the node that has one.
	Services(fault.NodeID) []netip.AddrPort
	Owner(netip.AddrPort) (fault.NodeID, bool)
}

// BulkConfig configures a BulkManager.
type BulkConfig struct {
	Self    string // this supervisor's id
	ReplyTo string // its first report address
	// DirectAddr returns the address at which a node can be reached directly now; false: there is none.
	DirectAddr func(fault.NodeID) (BulkPlace, bool)
	Names      BulkNames
	Signer     servicenet.Signer
	// Normal returns the nodes that this replica's fault map calls NORMAL.
	Normal   func(context.Context) map[fault.NodeID]bool
	Receiver bulk.ReceiverConfig
	Most     int // transfers at once; 0: 4
	// Patience is the time a consumer may take for one piece; 0: 2 minutes. A stalled consumer would keep the others
	// from fetching.
	Patience time.Duration
	Metrics  *metrics.Metrics
	Logger   *slog.Logger
}

// ErrBulkBusy refuses a transfer beyond the limit of running ones.
var ErrBulkBusy = errors.New("too many transfers")

// ErrBulkSlow says that the consumer stalled for too long.
var ErrBulkSlow = errors.New("the consumer has stalled")

// OutcomeError is the result of an incomplete transfer.
type OutcomeError struct {
	Result bulk.Result
	Why    string
}

func (e *OutcomeError) Error() string { return e.Result.String() + ": " + e.Why }

// BulkManager runs the transfers. Its methods may be called from any goroutine.
type BulkManager struct {
	cfg BulkConfig

	mu        sync.RWMutex
	running   int
	transfers map[bulk.Transfer]*transfer // by both names that each may have
}

// NewBulk returns a manager.
func NewBulk(cfg BulkConfig) *BulkManager {
	if cfg.Most == 0 {
		cfg.Most = 4
	}
	if cfg.Patience == 0 {
		cfg.Patience = 2 * time.Minute
	}
	return &BulkManager{cfg: cfg, transfers: map[bulk.Transfer]*transfer{}}
}

// Chunk processes a chunk packet from an address. The caller keeps b.
func (m *BulkManager) Chunk(from netip.AddrPort, b []byte) {
	h, err := bulk.ParseHeader(b)
	if err != nil {
		m.count("malformed")
		return
	}
	t := m.find(h.Transfer)
	if t == nil {
		m.count("foreign")
		return
	}
	way, known := m.wayOf(t.origin.Node, from)
	t.post(bulkPacket{data: slices.Clone(b), way: way, known: known})
}

// Announced processes a verified announcement from an address.
func (m *BulkManager) Announced(a *servicenet.Arrival, from netip.AddrPort) {
	ann := a.Msg.GetBulkAnnounce()
	id, err := bulk.ParseTransfer(ann.GetTransfer())
	if err != nil {
		return // checked with the signature
	}
	t := m.find(id)
	if t == nil {
		m.count("foreign")
		return
	}
	way, known := m.wayOf(t.origin.Node, from)
	if n := len(a.Hops); n > 0 { // the relay has signed that
		way, known = wayVia(t.origin.Node, a.Hops[n-1].Node), true
	}
	t.post(bulkPacket{announce: ann, way: way, known: known})
}

func (m *BulkManager) count(what string) { m.cfg.Metrics.BulkPackets.WithLabelValues(what).Inc() }

func (m *BulkManager) find(id bulk.Transfer) *transfer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.transfers[id]
}

// wayOf returns the way by which a node's packet came from an address. ok is false if the address belongs to no
// known node.
func (m *BulkManager) wayOf(node fault.NodeID, from netip.AddrPort) (bulk.Way, bool) {
	by, ok := m.cfg.Names.Owner(from)
	return wayVia(node, by), ok
}

// wayVia returns the way to the origin through the host half of node by. It is direct if by is the origin itself.
func wayVia(origin, by fault.NodeID) bulk.Way {
	if by == origin {
		return bulk.Way{}
	}
	return bulk.Way{Via: string(by)}
}

// Fetch fetches a half's object and passes it to emit, piece by piece, until the object is complete, the context
// ends, or emit fails. emit may block, up to BulkConfig.Patience (ErrBulkSlow). If Fetch returns because of that or
// because the context ended, a last call of emit may still be in progress.
func (m *BulkManager) Fetch(ctx context.Context, origin fault.Origin, object string, maxSize uint64,
	emit func(*lofamov1.GetBundleResponse) error) error {
	t, err := m.begin(ctx, origin, object, maxSize)
	if err != nil {
		return err
	}
	defer m.end(t)
	err = t.run(ctx, emit)
	result := "complete"
	var outcome *OutcomeError
	switch {
	case errors.As(err, &outcome):
		result = outcome.Result.String()
	case err != nil:
		result = bulk.Cancelled.String()
	}
	m.cfg.Metrics.Bulk.WithLabelValues(result).Inc()
	p := t.receiver.Progress()
	m.cfg.Logger.Info("bulk transfer ended", "of", origin.String(), "object", object, "result", result, "err", err,
		"bytes", p.Delivered, "way", p.Way.String(), "changes", p.Changes, "repeated", p.Repeated, "attempt", p.Attempt)
	return err
}

func (m *BulkManager) begin(ctx context.Context, origin fault.Origin, object string, maxSize uint64) (*transfer, error) {
	job := bulk.Job{
		Origin: origin, Object: object, MaxSize: maxSize, Supervisor: m.cfg.Self, ReplyTo: m.cfg.ReplyTo,
		Ways: m.ways(ctx, origin.Node),
	}
	if len(job.Ways) == 0 {
		return nil, &OutcomeError{bulk.Timeout, fmt.Sprintf("no node has a service address by which %s could be reached", origin.Node)}
	}
	for i := range job.Exchanges {
		e := &job.Exchanges[i]
		_, _ = rand.Read(e.Transfer[:]) // never fails
		var err error
		if e.Private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return nil, fmt.Errorf("key of a transfer: %w", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running >= m.cfg.Most {
		m.cfg.Metrics.Bulk.WithLabelValues("busy").Inc()
		return nil, fmt.Errorf("%w: %d", ErrBulkBusy, m.cfg.Most)
	}
	t, err := newTransfer(m, job)
	if err != nil {
		return nil, err
	}
	m.running++
	for _, e := range job.Exchanges {
		m.transfers[e.Transfer] = t
	}
	return t, nil
}

func (m *BulkManager) end(t *transfer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	for _, e := range t.exchanges {
		delete(m.transfers, e.Transfer)
	}
}

// send signs and sends a message by a way. A direct message answers the source of the node's last one, so that a
// transfer follows the node from one service interface to another. A pull with too many ranges for the wrapper is
// split in two.
func (m *BulkManager) send(origin fault.Origin, s bulk.Send) {
	node := origin.Node
	if s.Way.Via != "" {
		node = fault.NodeID(s.Way.Via)
	}
	at, ok := m.cfg.DirectAddr(node)
	if !ok {
		return // it has no address: another way follows
	}
	if s.Way.Via == "" {
		answerTo(s.Message, at.ReplyTo)
	}
	b, err := servicenet.Seal(s.Message, m.cfg.Signer)
	if err == nil && s.Way.Via != "" {
		b, err = servicenet.SealDowncall(origin.Node, b, m.cfg.Signer)
	}
	if pull := s.Message.GetBulkPull(); servicenet.RefusalOf(err) == servicenet.RefusedTooLong && len(pull.GetRanges()) > 1 {
		for _, half := range splitPull(pull) {
			m.send(origin, bulk.Send{Message: half, Way: s.Way})
		}
		return
	}
	if err == nil {
		err = at.Socket.Send(at.Addr, b)
	}
	if err != nil { // a retry follows, or another way is tried
		m.cfg.Metrics.SendFails.Inc()
		m.cfg.Logger.Debug("send", "what", "bulk", "node", node, "err", err)
	}
}

func answerTo(m *lofamov1.Message, addr string) {
	switch b := m.GetBody().(type) {
	case *lofamov1.Message_BulkRequest:
		b.BulkRequest.ReplyTo = addr
	case *lofamov1.Message_BulkPull:
		b.BulkPull.ReplyTo = addr
	}
}

func splitPull(p *lofamov1.BulkPull) []*lofamov1.Message {
	var out []*lofamov1.Message
	n := len(p.GetRanges()) / 2
	for _, ranges := range [][]*lofamov1.ChunkRange{p.GetRanges()[:n], p.GetRanges()[n:]} {
		out = append(out, &lofamov1.Message{Body: &lofamov1.Message_BulkPull{BulkPull: &lofamov1.BulkPull{
			Transfer: p.GetTransfer(), Node: p.GetNode(), Half: p.GetHalf(), Ranges: ranges, ReplyTo: p.GetReplyTo(), Via: p.GetVia(),
			Done: p.GetDone(),
		}}})
	}
	return out
}

// bulkNow is when something happens to a receiver.
func bulkNow() time.Time { return time.Now() }
