package api

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// An address counts when its claimant has received a challenge there: see docs/adr/0088-an-address-is-proved.md.

// addressProofs makes and checks the proofs in challenges. It keeps no list: a proof is a MAC over the claim.
type addressProofs struct {
	key   [32]byte
	begun time.Time
}

// proofTime is how long a proof is good at least; it is good for twice that at most.
const proofTime = 15 * time.Second

func newAddressProofs() addressProofs {
	p := addressProofs{begun: time.Now()}
	_, _ = rand.Read(p.key[:]) // never fails
	return p
}

// period returns the number of the period that counts for new proofs.
func (p *addressProofs) period(now time.Time) uint64 { return uint64(now.Sub(p.begun) / proofTime) } //nolint:gosec // not negative

// proof returns the proof that the owner of these keys, who listens for this value, has an address.
func (p *addressProofs) proof(period uint64, keys, listening []byte, address netip.AddrPort) []byte {
	m := hmac.New(sha256.New, p.key[:])
	_ = binary.Write(m, binary.BigEndian, period) // a MAC takes everything
	_, _ = m.Write(slices.Concat(keys, listening, []byte(address.String())))
	return m.Sum(nil)
}

// good reports whether the proofs of all addresses are good.
func (p *addressProofs) good(now time.Time, keys, listening []byte, addresses []netip.AddrPort, proofs [][]byte) bool {
	if len(proofs) != len(addresses) {
		return false
	}
	for i, a := range addresses {
		period := p.period(now)
		good := hmac.Equal(proofs[i], p.proof(period, keys, listening, a)) ||
			period > 0 && hmac.Equal(proofs[i], p.proof(period-1, keys, listening, a))
		if !good {
			return false
		}
	}
	return true
}

// mayHave refuses addresses that no node can have.
func (e *Enrolment) mayHave(addresses []netip.AddrPort) error {
	own := e.cfg.Own()
	for i, a := range addresses {
		field := fmt.Sprintf("service[%d]", i)
		if a.Addr().Unmap().IsLoopback() && !e.cfg.Local {
			return invalid(field, "given %s: want an address that other machines reach, for the supervisors are on other machines: "+
				"see join.address", a)
		}
		if of, taken := own[netip.AddrPortFrom(a.Addr().Unmap(), a.Port())]; taken {
			return invalid(field, "given %s: want another address or port: it is %s of a supervisor", a, of)
		}
	}
	return nil
}

// reachable reports whether the topology has the service addresses of a node already.
func (e *Enrolment) reachable(claim topology.Node) bool {
	have, _ := e.s.cfg.Names.Topology().Node(claim.ID)
	return slices.Equal(have.Service, claim.Service)
}

// prove reports whether the node has proved its addresses, and notes the nodes that lose theirs because they do not answer. If the node
// listens and has not proved them yet, prove sends the challenges.
func (e *Enrolment) prove(ctx context.Context, claim topology.Node, req *lofamov1.EnrolRequest,
	admit *lofamov1.AdmitRequest) (bool, error) {
	listening := req.GetListening()
	proved := len(listening) > 0 && e.proofs.good(time.Now(), admit.GetKeys(), listening, claim.Service, req.GetProofs())
	if proved || len(listening) == 0 {
		silent, err := e.silent(ctx, claim, admit.GetOwn())
		admit.Silent = silent
		return proved, err
	}
	if len(listening) != servicenet.ListeningSize {
		return false, invalid("listening", "given %d bytes: want %d", len(listening), servicenet.ListeningSize)
	}
	for i, a := range claim.Service {
		if !admit.GetOwn() && !e.targets.allow(a.Addr().String(), time.Now()) {
			return false, status.Errorf(codes.ResourceExhausted, "service[%d]: too many challenges to %s: try again in a moment", i, a.Addr())
		}
		proof := e.proofs.proof(e.proofs.period(time.Now()), admit.GetKeys(), listening, a)
		e.cfg.ChallengeAddress(i, a, servicenet.AppendAddressChallenge(nil, listening, proof))
	}
	return false, nil
}

// silent challenges the nodes that have the name or an address of this one. It returns an error if one of them lives. A node with its own
// certificate spends its own budget alone, so that holders of tokens cannot spend the budgets of its challenges.
func (e *Enrolment) silent(ctx context.Context, claim topology.Node, own bool) ([]string, error) {
	top := e.s.cfg.Names.Topology()
	holders := top.Holders(claim.ID, claim.Service)
	var wg sync.WaitGroup
	lives := make([]bool, len(holders))
	for i, id := range holders {
		if !own && !e.targets.allow("node "+string(id), time.Now()) {
			return nil, status.Errorf(codes.ResourceExhausted, "node %s: too many challenges: try again in a moment", id)
		}
		wg.Go(func() { lives[i] = e.cfg.Lives(ctx, id, top.Neighbours(id)) })
	}
	wg.Wait()
	var silent []string
	for i, id := range holders {
		switch n, _ := top.Node(id); {
		case !lives[i]:
			silent = append(silent, string(id))
		case id == claim.ID:
			return nil, status.Errorf(codes.AlreadyExists, "node %s: there is one, and it lives: it answers at %v, and this machine claims %v: "+
				"choose another name, or stop that node's agent; if this state directory is a copy, empty it", id, n.Service,
				claim.Service)
		default:
			return nil, status.Errorf(codes.FailedPrecondition, "service address: one of %v is that of node %s, which lives: choose another one",
				claim.Service, id)
		}
	}
	return silent, nil
}
