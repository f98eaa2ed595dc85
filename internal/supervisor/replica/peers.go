// Package replica is what the supervisors say to one another: standing connections, the forwarding
// of evidence to the leader, and of the leader's acks back.
//
// Who leads is told to it (package lead); what evidence means is the engine's.
package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// MaxMessage bounds a gRPC message between replicas, in bytes: a list of 100,000 nodes fits.
const MaxMessage = 256 << 20

// Peers are the other replicas, each with a standing connection.
type Peers struct {
	conns map[string]*grpc.ClientConn
}

// Dial makes the connections, which are opened when Run runs. addresses are of gRPC services by
// supervisor id, without this one's own; tlsFor gives the configuration that admits only the
// replica of that id.
func Dial(addresses map[string]string, tlsFor func(id string) (*tls.Config, error)) (*Peers, error) {
	p := &Peers{conns: make(map[string]*grpc.ClientConn, len(addresses))}
	for id, addr := range addresses {
		conf, err := tlsFor(id)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connect to supervisor %s: %w", id, err), p.Close())
		}
		conn, err := grpc.NewClient("passthrough:///"+addr,
			grpc.WithTransportCredentials(credentials.NewTLS(conf)),
			grpc.WithIdleTimeout(0),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: time.Second,
			}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage)),
		)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connect to supervisor %s at %s: %w", id, addr, err), p.Close())
		}
		p.conns[id] = conn
	}
	return p, nil
}

// Run keeps the connections open until the context ends.
func (p *Peers) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, conn := range p.conns {
		wg.Go(func() {
			for ctx.Err() == nil {
				conn.Connect()
				conn.WaitForStateChange(ctx, conn.GetState())
			}
		})
	}
	wg.Wait()
}

// Conn returns the connection to a replica; nil where there is none.
func (p *Peers) Conn(id string) *grpc.ClientConn { return p.conns[id] }

// State says what the connection tells of a replica: NORMAL while it answers, FAILED when it
// refuses or does not answer, UNKNOWN in between.
func (p *Peers) State(id string) lofamov1.State {
	conn := p.conns[id]
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
func (p *Peers) Close() error {
	var errs []error
	for id, conn := range p.conns {
		if err := conn.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close connection to supervisor %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}
