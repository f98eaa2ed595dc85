package ingest

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// ExchangeConfig of the exchanges.
type ExchangeConfig struct {
	ID      string              // this supervisor's
	Allowed []lofamov1.Checksum // that halves may choose from
	Wait    time.Duration       // for the acknowledgement of a reply, at first
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// Exchanges establishes paths with halves: it owns the machine of package paths, its keys, and the resulting
// sessions. Its methods may be called from any goroutine.
type Exchanges struct {
	cfg   ExchangeConfig
	table *direct.Sessions

	mu      sync.Mutex
	machine *pathMachine
	keys    map[uint64]*servicenet.SessionKey // of the machine's present exchanges
	ended   []endedSession                    // the oldest first: still in the table
	wake    time.Time
}

// endedSession is a session that the machine has ended.
type endedSession struct {
	id uint64
	at time.Time
}

// lateTime is the longest time a message may be in flight after its session ended. After that the session leaves
// the table, because the oldest sessions in the table are mostly in use.
const lateTime = time.Second

// NewExchanges returns Exchanges without any sessions.
func NewExchanges(cfg ExchangeConfig) *Exchanges {
	for o := pathOutcome(1); int(o) < numPathOutcomes; o++ {
		cfg.Metrics.PathRequests.WithLabelValues(o.String()) // begins at 0
	}
	x := &Exchanges{cfg: cfg, table: direct.NewSessions(), keys: make(map[uint64]*servicenet.SessionKey)}
	x.machine = newPathMachine(pathConfig{Allowed: cfg.Allowed, Wait: cfg.Wait, Grant: x.grant})
	return x
}

// Verifier returns a verifier of v's signatures and of the sessions' MACs.
func (x *Exchanges) Verifier(v servicenet.Verifier) servicenet.Verifier {
	return direct.WithSessions(v, x.table)
}

// Drop forgets the sessions with a half: their MACs no longer prove anything, and the half signs again.
func (x *Exchanges) Drop(o fault.Origin) { x.table.Drop(o.String()) }

// Keep forgets the exchanges and sessions of all other nodes.
func (x *Exchanges) Keep(known func(fault.NodeID) bool) {
	x.step(func(m *pathMachine) pathOutput { return m.Keep(known) })
}

// grant makes a session: a fresh key of our own, the secret derived from both ends' keys, and a random name. If the half has too many
// sessions in the table, one of those that end makes room. A request that fails ends none.
func (x *Exchanges) grant(r pathRequest, ended []uint64) (pathGrant, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return pathGrant{}, fmt.Errorf("key for a path of %s: %w", r.Origin, err)
	}
	for {
		id := sessionID()
		secret, err := servicenet.PathExchange{
			Half: r.Origin.String(), Epoch: uint64(r.Epoch), ID: r.ID, Supervisor: x.cfg.ID, Session: id,
		}.Secret(private, r.Key)
		if err != nil {
			return pathGrant{}, err
		}
		key := servicenet.NewSession(id, secret)
		for _, old := range ended {
			x.table.Retire(old)
		}
		if !x.table.Put(r.Origin.String(), servicenet.RoleNode, key) {
			continue // another half has a session of that name
		}
		x.keys[id] = key
		return pathGrant{Session: id, Key: private.PublicKey().Bytes()}, nil
	}
}

// sessionID returns a random name other than 0.
func sessionID() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		if id := binary.BigEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

// step runs one event through the machine and does the bookkeeping.
func (x *Exchanges) step(event func(*pathMachine) pathOutput) pathOutput {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := event(x.machine)
	x.wake = out.Wake
	now := time.Now()
	for _, id := range out.Ended {
		delete(x.keys, id)
		x.table.Retire(id)
		x.ended = append(x.ended, endedSession{id, now})
	}
	for len(x.ended) > 0 && now.Sub(x.ended[0].at) >= lateTime {
		x.table.Remove(x.ended[0].id)
		x.ended = x.ended[1:]
	}
	m := x.cfg.Metrics
	if out.Outcome != 0 {
		m.PathRequests.WithLabelValues(out.Outcome.String()).Inc()
	}
	if out.Unanswered > 0 {
		m.PathRequests.WithLabelValues(pathUnanswered.String()).Add(float64(out.Unanswered))
	}
	m.Sessions.Set(float64(len(x.keys)))
	return out
}

// request processes a REQ.
func (x *Exchanges) request(now time.Time, m *lofamov1.PathRequest, from Place) pathOutput {
	return x.step(func(machine *pathMachine) pathOutput {
		return machine.Request(now, pathRequest{
			Origin: servicenet.OriginOf(m), Epoch: fault.Epoch(m.GetEpoch()),
			ID: m.GetId(), Offered: m.GetChecksums(), Key: m.GetKey(), From: from,
		})
	})
}

// ack processes an ACK.
func (x *Exchanges) ack(m *lofamov1.PathAck, from Place) pathOutput {
	return x.step(func(machine *pathMachine) pathOutput {
		o := servicenet.OriginOf(m)
		return machine.Ack(o, fault.Epoch(m.GetEpoch()), m.GetId(), from)
	})
}

// heard records a verified message of a half: signed in an epoch, or under a session (not 0). A restarted half
// gets no messages under its old sessions. Late messages under those sessions are judged by their epoch, like all
// old messages.
func (x *Exchanges) heard(o fault.Origin, epoch fault.Epoch, session uint64, from Place) pathOutput {
	return x.step(func(machine *pathMachine) pathOutput {
		if session != 0 {
			out := machine.Proved(o, session, from)
			if out.Outcome == pathKnown {
				out.Outcome = 0 // with every digest
			}
			return out
		}
		return machine.Heard(o, epoch)
	})
}

// tick repeats the replies that are due.
func (x *Exchanges) tick(now time.Time) (out pathOutput, wake time.Time) {
	x.mu.Lock()
	due := !x.wake.IsZero() && !now.Before(x.wake)
	wake = x.wake
	x.mu.Unlock()
	if due {
		out = x.step(func(machine *pathMachine) pathOutput { return machine.Tick(now) })
		wake = out.Wake
	}
	return out, wake
}

// reply returns the seal options for the answer to a datagram, named by its first report.
func (x *Exchanges) reply(id fault.ReportID) servicenet.SealOptions {
	x.mu.Lock()
	defer x.mu.Unlock()
	session, sum := x.machine.Reply(id.Origin, id.Epoch, id.Seq)
	return x.options(session, sum)
}

// seal returns the seal options for other messages to a half.
func (x *Exchanges) seal(o fault.Origin) servicenet.SealOptions {
	x.mu.Lock()
	defer x.mu.Unlock()
	session, sum := x.machine.Session(o)
	return x.options(session, sum)
}

func (x *Exchanges) options(session uint64, sum lofamov1.Checksum) servicenet.SealOptions {
	key := x.keys[session]
	if key == nil {
		return servicenet.SealOptions{}
	}
	return servicenet.SealOptions{Session: key, Checksum: &sum}
}

// places are where a half has established paths.
func (x *Exchanges) places(o fault.Origin) []Place {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.machine.Places(o)
}
