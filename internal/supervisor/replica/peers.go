// Package replica connects the supervisors with each other. It keeps connections open, forwards evidence to the
// leader, and returns the leader's acks.
//
// Package lead supplies the leader, and the caller supplies the list of replicas. The engine interprets the
// evidence.
package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/retransmit"
)

// MaxMessage bounds a gRPC message between replicas, in bytes: a list of 100,000 nodes fits.
const MaxMessage = 256 << 20

// Peers are the other replicas, each with a permanent connection. Its methods may be called from any goroutine.
type Peers struct {
	tlsFor func(id string) (*tls.Config, error)

	mu      sync.Mutex
	peers   map[string]peer
	changed chan struct{} // closed and renewed when peers changes
}

type peer struct {
	addr    string
	conn    *grpc.ClientConn
	reached *atomic.Bool // the connection was open at some time
}

// Dial makes the connections; Run opens them. addresses are those of gRPC services by supervisor id, without this
// one's own. tlsFor returns the configuration that admits only the replica of that id.
func Dial(addresses map[string]string, tlsFor func(id string) (*tls.Config, error)) (*Peers, error) {
	p := &Peers{tlsFor: tlsFor, peers: make(map[string]peer), changed: make(chan struct{})}
	if err := p.Set(addresses); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Set replaces the list of the other replicas: it connects to new ones and closes the connections of removed ones.
// It leaves out replicas without a connection and names them in the error. A connection to a hung replica takes seconds to
// close; meanwhile the other methods do not wait.
func (p *Peers) Set(addresses map[string]string) error {
	removed, err := p.replace(addresses)
	closed := make(chan error, len(removed))
	for id, conn := range removed { // side by side: each may wait for a replica that hangs
		go func() {
			err := conn.Close()
			if err != nil {
				err = fmt.Errorf("close connection to supervisor %s: %w", id, err)
			}
			closed <- err
		}()
	}
	errs := []error{err}
	for range removed {
		errs = append(errs, <-closed)
	}
	return errors.Join(errs...)
}

// replace changes the list as Set does, but returns the connections of removed replicas instead of closing them.
func (p *Peers) replace(addresses map[string]string) (removed map[string]*grpc.ClientConn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	removed = make(map[string]*grpc.ClientConn)
	for id, old := range p.peers {
		if addresses[id] != old.addr {
			removed[id] = old.conn
			delete(p.peers, id)
		}
	}
	changed := len(removed) > 0
	for id, addr := range addresses {
		if p.peers[id].conn != nil {
			continue
		}
		conn, err := p.dial(id, addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("connect to supervisor %s at %s: %w", id, addr, err))
			continue
		}
		p.peers[id] = peer{addr, conn, new(atomic.Bool)}
		changed = true
	}
	if changed {
		close(p.changed)
		p.changed = make(chan struct{})
	}
	return removed, errors.Join(errs...)
}

func (p *Peers) dial(id, addr string) (*grpc.ClientConn, error) {
	conf, err := p.tlsFor(id)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(retransmit.Dial),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)),
	)
}

// Run keeps the connections open until the context ends.
func (p *Peers) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	kept := make(map[*grpc.ClientConn]bool)
	for {
		p.mu.Lock()
		changed := p.changed
		now := make(map[*grpc.ClientConn]bool, len(p.peers))
		for _, peer := range p.peers {
			now[peer.conn] = true
			if !kept[peer.conn] {
				wg.Go(func() { peer.keep(ctx) })
			}
		}
		p.mu.Unlock()
		kept = now
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// keep keeps the connection open until it is closed or the context ends.
func (p peer) keep(ctx context.Context) {
	for ctx.Err() == nil {
		p.conn.Connect()
		state := p.conn.GetState()
		if state == connectivity.Shutdown {
			return
		}
		if state == connectivity.Ready {
			p.reached.Store(true)
		}
		p.conn.WaitForStateChange(ctx, state)
	}
}

// Conn returns the connection to a replica, or nil.
func (p *Peers) Conn(id string) *grpc.ClientConn { return p.peer(id).conn }

// peer returns a replica of the list, or the zero value.
func (p *Peers) peer(id string) peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers[id]
}

// Changed returns a channel that is closed when the list of replicas changes.
func (p *Peers) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// State returns the state of a replica by its connection: NORMAL while it answers, FAILED when it refuses or does
// not answer, UNKNOWN in between.
func (p *Peers) State(id string) lofamov1.State {
	conn := p.Conn(id)
	if conn == nil {
		return lofamov1.State_UNKNOWN
	}
	switch conn.GetState() {
	case connectivity.Ready:
		return lofamov1.State_NORMAL
	case connectivity.TransientFailure:
		return lofamov1.State_FAILED
	default:
		return lofamov1.State_UNKNOWN
	}
}

// Close closes the connections.
func (p *Peers) Close() error { return p.Set(nil) }
