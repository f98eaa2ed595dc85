package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// Limits of one proof of the node's addresses.
const (
	// proofWithin is the time for the challenges to arrive, and proofTries the number of times that the node requests them.
	proofWithin = 500 * time.Millisecond
	proofTries  = 3
)

// enrolAt sends a request to one supervisor. If the supervisor wants proof of the node's service addresses, it listens there for the
// supervisor's challenges, and repeats the request with their proofs.
func enrolAt(ctx context.Context, supervisor lofamov1.EnrolmentClient, at []config.ServiceAddr, req *lofamov1.EnrolRequest) (
	*lofamov1.EnrolResponse, error) {
	resp, err := supervisor.Enrol(ctx, req)
	if err != nil || !resp.GetProve() {
		return resp, err
	}
	req.Listening = make([]byte, servicenet.ListeningSize)
	_, _ = rand.Read(req.Listening) // never fails
	p, err := listenForProofs(at, req.GetListening())
	if err != nil {
		return nil, err
	}
	defer p.close()
	for range proofTries {
		if resp, err = supervisor.Enrol(ctx, req); err != nil || !resp.GetProve() {
			return resp, err
		}
		select {
		case <-p.all:
			req.Proofs = p.proofs
			resp, err = supervisor.Enrol(ctx, req)
			if err == nil && resp.GetProve() {
				err = errors.New("the supervisor does not accept its own proofs: another one may answer at its address")
			}
			return resp, err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(proofWithin):
		}
	}
	return nil, fmt.Errorf("no challenge of the supervisor arrived at UDP %v: want addresses of this machine (join.address) at which "+
		"supervisors reach it, and no filter between", req.GetService())
}

// proofs listens for the challenges to the service addresses of a node.
type proofs struct {
	all     chan struct{} // closed when all have arrived
	sockets []*direct.Socket
	end     context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	missing int
	proofs  [][]byte // by the number of the address; read-only when all is closed
}

// listenForProofs listens at all addresses.
func listenForProofs(at []config.ServiceAddr, listening []byte) (*proofs, error) {
	ctx, end := context.WithCancel(context.Background())
	p := &proofs{all: make(chan struct{}), end: end, missing: len(at), proofs: make([][]byte, len(at))}
	for i, a := range at {
		s, err := direct.Listen(a.Listen, direct.Options{Interface: a.Interface})
		if err != nil {
			p.close()
			return nil, fmt.Errorf("listen for the supervisor's challenge: %w", err)
		}
		p.sockets = append(p.sockets, s)
		p.running.Go(func() {
			_ = s.Run(ctx, func(_ netip.AddrPort, b []byte) { p.take(i, b, listening) }) // without challenges the request fails
		})
	}
	return p, nil
}

// take takes a datagram at the address with this number.
func (p *proofs) take(i int, b, listening []byte) {
	proof, ok := servicenet.AddressProof(b, listening)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || p.proofs[i] != nil {
		return
	}
	p.proofs[i] = append([]byte(nil), proof...)
	if p.missing--; p.missing == 0 {
		close(p.all)
	}
}

// close stops listening.
func (p *proofs) close() {
	p.end()
	p.running.Wait()
	for _, s := range p.sockets {
		_ = s.Close()
	}
}
