package fleet

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/pieces"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Counters of a fleet's socket.
type Counters struct {
	Sent, Received uint64 // datagrams
	Answered       uint64 // digests that a supervisor said it has RECEIVED
	Challenges     uint64
	FaultUpdates   uint64
	Retries        uint64 // reports sent again
	Unreadable     uint64 // answers that are no messages
}

// wire is the socket of all nodes, on every address of 127.0.0.0/8.
type wire struct {
	f    *Fleet
	conn *net.UDPConn

	sent, received, answered, challenges, updates, retries, unreadable atomic.Uint64

	mu      sync.Mutex
	pending map[*Node][]*flight    // reports on their way
	settled chan struct{}          // has room for one: something was COMMITTED
	proofs  map[string]chan []byte // of nodes that enrol, by the value for which they listen
}

// flight is a batch that is not COMMITTED yet.
type flight struct {
	*Batch
	left      int // reports not COMMITTED
	committed map[fault.Seq]bool
	received  bool
	target    int
	again     time.Time
	wait      time.Duration
	begun     time.Time
	done      func(took time.Duration)
}

// socketBuffer holds packets that arrive while the process is not running.
const socketBuffer = 16 << 20

func newWire(f *Fleet) (*wire, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(conn.SetReadBuffer(socketBuffer), conn.SetWriteBuffer(socketBuffer)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &wire{f: f, conn: conn, pending: make(map[*Node][]*flight), settled: make(chan struct{}, 1),
		proofs: make(map[string]chan []byte)}, nil
}

func (w *wire) port() uint16 { return netip.MustParseAddrPort(w.conn.LocalAddr().String()).Port() }

func (w *wire) counters() Counters {
	return Counters{
		Sent: w.sent.Load(), Received: w.received.Load(), Answered: w.answered.Load(), Challenges: w.challenges.Load(),
		FaultUpdates: w.updates.Load(), Retries: w.retries.Load(), Unreadable: w.unreadable.Load(),
	}
}

// start runs the wire; the returned function stops it.
func (w *wire) start() func() error {
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.receive(ctx) })
	g.Go(func() error { return w.repeat(ctx) })
	context.AfterFunc(ctx, func() { _ = w.conn.Close() })
	return func() error {
		cancel()
		return g.Wait()
	}
}

// believe verifies nothing: see the package comment.
type believe struct{}

func (believe) VerifyName([]byte, []byte, []byte) (role, name string, err error) {
	return servicenet.RoleSupervisor, "", nil
}

func (believe) VerifyMAC(uint64, []byte, []byte) (role, name string, err error) {
	return servicenet.RoleSupervisor, "", nil
}

func (w *wire) receive(ctx context.Context) error {
	b, joiner := make([]byte, 1<<16), pieces.NewJoiner(256)
	for {
		n, from, err := w.conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return unlessOver(ctx, err)
		}
		whole, ok := joiner.Join(from, b[:n])
		if !ok {
			continue
		}
		w.received.Add(1)
		if w.proved(whole) {
			continue
		}
		o, err := servicenet.Open(whole, believe{})
		if err != nil {
			w.unreadable.Add(1)
			continue
		}
		if err := w.handle(from, o.Msg); err != nil {
			return err
		}
	}
}

// listen returns a channel that receives the proof in an address challenge.
func (w *wire) listen(listening []byte) (proof <-chan []byte, end func()) {
	ch := make(chan []byte, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proofs[string(listening)] = ch
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.proofs, string(listening))
	}
}

// proved takes a datagram if it is an address challenge for a node that listens.
func (w *wire) proved(b []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for listening, ch := range w.proofs {
		if proof, ok := servicenet.AddressProof(b, []byte(listening)); ok {
			select {
			case ch <- slices.Clone(proof):
			default: // a copy
			}
			return true
		}
	}
	return false
}

// unlessOver returns err, unless the context has ended: then the socket was closed on purpose.
func unlessOver(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

func (w *wire) handle(from netip.AddrPort, m *lofamov1.Message) error {
	for _, a := range m.GetAcks() {
		w.acked(a)
	}
	switch body := m.GetBody().(type) {
	case *lofamov1.Message_Challenge:
		w.challenges.Add(1)
		return w.challenged(from, body.Challenge)
	case *lofamov1.Message_PathReply:
		return w.granted(from, body.PathReply)
	case *lofamov1.Message_FaultUpdate:
		w.updates.Add(1)
		if n := w.f.find(body.FaultUpdate.GetNode()); n != nil {
			n.hears(body.FaultUpdate)
		}
	case *lofamov1.Message_PeerOrder:
		if n := w.f.find(body.PeerOrder.GetNode()); n != nil && n.agent != nil {
			return n.agent.ordered(from, body.PeerOrder)
		}
	case *lofamov1.Message_Downcall: // through a neighbour: the same question comes directly too
		w.challenges.Add(1)
	}
	return nil
}

func (w *wire) challenged(from netip.AddrPort, c *lofamov1.Challenge) error {
	n := w.f.find(c.GetNode())
	if n == nil || n.dead.Load() || c.GetHalf() == lofamov1.Half_HALF_DNP {
		return nil
	}
	b, err := n.answer(c)
	if err != nil {
		return err
	}
	return w.send(n, from, b)
}

// send sends a datagram from a node's own address: supervisors have a budget for each source.
func (w *wire) send(n *Node, to netip.AddrPort, b []byte) error {
	w.sent.Add(1)
	_, _, err := w.conn.WriteMsgUDPAddrPort(b, n.source, to)
	return err
}

// granted makes the session of a reply, and acknowledges it.
func (w *wire) granted(from netip.AddrPort, r *lofamov1.PathReply) error {
	n := w.f.find(r.GetNode())
	if n == nil {
		return nil
	}
	n.mu.Lock()
	if n.session == nil && n.key != nil && r.GetId() == n.path {
		secret, err := servicenet.PathExchange{
			Half: string(n.id) + "/" + fault.HalfHost.String(), Epoch: uint64(n.epoch), ID: r.GetId(),
			Supervisor: w.f.configs[n.target.Load()].ID, Session: r.GetSession(),
		}.Secret(n.key, r.GetKey())
		if err != nil {
			n.mu.Unlock()
			return err
		}
		n.session = servicenet.NewSession(r.GetSession(), secret)
	}
	n.mu.Unlock()
	b, err := n.pathAck()
	if err != nil {
		return err
	}
	return w.send(n, from, b)
}

// Connect opens a path for every living node that has none. It opens many at a time, because each exchange costs a supervisor a tenth of a
// millisecond.
func (f *Fleet) Connect(ctx context.Context) error {
	const atOnce = 64
	begun := time.Now()
	waiting := slices.DeleteFunc(slices.Clone(f.nodes), func(n *Node) bool { return !n.waits() })
	for group := range slices.Chunk(waiting, atOnce) {
		for {
			if err := f.ask(group); err != nil {
				return err
			}
			if established(group, 200*time.Millisecond) {
				break
			}
			if err := ctx.Err(); err != nil || time.Since(begun) > 5*time.Minute {
				return fmt.Errorf("open paths: %s or a later node has no session: %w", group[0].id, errors.Join(err, context.DeadlineExceeded))
			}
		}
	}
	return nil
}

// ask sends a REQ for every node that waits for a session.
func (f *Fleet) ask(nodes []*Node) error {
	for _, n := range nodes {
		if !n.waits() {
			continue
		}
		n.mu.Lock()
		key := n.key
		n.mu.Unlock()
		if key == nil {
			var err error
			if key, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
				return err
			}
		}
		b, err := n.pathRequest(key)
		if err != nil {
			return err
		}
		if err := f.wire.send(n, f.targets[n.target.Load()], b); err != nil {
			return err
		}
	}
	return nil
}

// established waits until none of the nodes waits for a session.
func established(nodes []*Node, wait time.Duration) bool {
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(nodes, (*Node).waits) {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
