package fleet

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// issuer makes the issuer of the certificates of nodes that enrol.
func (f *Fleet) issuer() error {
	i, err := pki.NewIssuer(clusterName)
	if err != nil {
		return err
	}
	if err := i.Save(f.path("issuer.pem"), f.path("issuer.key")); err != nil {
		return err
	}
	return os.WriteFile(f.path("ca.pem"), slices.Concat(f.ca.CertPEM(), i.CertPEM()), 0o600)
}

// Token makes a token for so many new nodes.
func (f *Fleet) Token(ctx context.Context, uses int) (token string, err error) {
	err = patient(ctx, func() error {
		r, err := f.client.CreateToken(ctx, &lofamov1.CreateTokenRequest{Uses: uint32(uses)})
		token = r.GetToken()
		return err
	})
	return token, err
}

// Leave lets a node leave in order, or forgets a dead one, and ends its agent.
func (f *Fleet) Leave(ctx context.Context, a *Agent) error {
	err := patient(ctx, func() error {
		_, err := f.client.LeaveNodes(ctx, &lofamov1.LeaveNodesRequest{Nodes: []string{string(a.id)}, Forget: true})
		if status.Code(err) == codes.NotFound { // the answer to an earlier attempt was lost
			return nil
		}
		return err
	})
	if err == nil {
		f.Remove(a)
	}
	return err
}

// patient repeats a call while no leader answers it.
func patient(ctx context.Context, call func() error) error {
	for {
		err := call()
		if err == nil || !later(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// later reports whether a call may succeed when it is repeated. The client has an error of its own if no supervisor answers.
func later(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unknown:
		return true
	default:
		return false
	}
}

// NewAgent makes an agent without keys, place and neighbours.
func (f *Fleet) NewAgent(id fault.NodeID) *Agent {
	f.air.Lock()
	defer f.air.Unlock()
	f.ranks++
	return newAgent(f, id, f.ranks-1)
}

// Enrol starts an agent. It returns when the agent has its certificates. From then on the agent waits for its place and
// follows the supervisors' orders, until Remove.
func (a *Agent) Enrol(ctx context.Context, token string) error {
	if err := a.enrol(ctx, token); err != nil {
		return fmt.Errorf("enrol %s: %w", a.id, err)
	}
	a.f.mu.Lock()
	a.f.byID[string(a.id)] = a.Node
	a.f.mu.Unlock()
	a.f.air.Lock()
	defer a.f.air.Unlock()
	a.f.agents[a.id] = a
	return nil
}

// Pauses between two requests of a node that enrols, as agents make them.
const enrolPause, enrolPauseMost = time.Second, 30 * time.Second

// enrol asks one supervisor after the other until one lets the node in.
func (a *Agent) enrol(ctx context.Context, text string) error {
	token, err := pki.ParseJoinToken(text)
	if err != nil {
		return err
	}
	keys := make(map[pki.Identity]ed25519.PrivateKey)
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if _, keys[pki.NodeIdentity(clusterName, a.id, h)], err = ed25519.GenerateKey(rand.Reader); err != nil {
			return err
		}
	}
	pause := enrolPause
	for i := int(a.target.Load()); ; i++ {
		err := a.ask(ctx, a.f.configs[i%len(a.f.configs)].Enrolment.Listen, text, token.Pin, keys)
		if err == nil || !later(err) {
			return err
		}
		if (i+1)%len(a.f.configs) != 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, enrolPauseMost)
	}
}

// ask sends one request from the agent's own address: supervisors limit the requests of each.
func (a *Agent) ask(ctx context.Context, to, token string, pin [32]byte, keys map[pki.Identity]ed25519.PrivateKey) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var server atomic.Pointer[pki.Identity]
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: address(a.rank).AsSlice()}}
	conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithTransportCredentials(credentials.NewTLS(pki.JoinTrust{Pin: &pin}.TLS(&server))),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", to) }))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	host, dnp := pki.NodeIdentity(clusterName, a.id, fault.HalfHost), pki.NodeIdentity(clusterName, a.id, fault.HalfDNP)
	req := &lofamov1.EnrolRequest{
		Listening: make([]byte, servicenet.ListeningSize), Node: string(a.id), Token: token, Service: []string{a.f.service(a.rank)},
		Clock:   timestamppb.Now(),
		HostKey: keys[host].Public().(ed25519.PublicKey), HostProof: pki.ProveKey(keys[host], host),
		DnpKey: keys[dnp].Public().(ed25519.PublicKey), DnpProof: pki.ProveKey(keys[dnp], dnp),
	}
	_, _ = rand.Read(req.Listening) // never fails
	proof, end := a.f.wire.listen(req.GetListening())
	defer end()
	supervisor := lofamov1.NewEnrolmentClient(conn)
	resp, err := supervisor.Enrol(ctx, req)
	if err == nil && resp.GetProve() {
		select {
		case p := <-proof:
			req.Proofs = [][]byte{p}
			resp, err = supervisor.Enrol(ctx, req)
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		}
	}
	if err != nil {
		return err
	}
	if err := pki.CheckEnrolled(resp.GetCa(), &pin, time.Now(), map[pki.Identity][]byte{host: resp.GetHostCertificate(),
		dnp: resp.GetDnpCertificate()}, keys); err != nil {
		return err
	}
	if a.signer, err = a.keep(host, resp.GetHostCertificate(), keys); err == nil {
		a.dnp, err = a.keep(dnp, resp.GetDnpCertificate(), keys)
	}
	return err
}

// keep writes a half's certificate and key to files, as agents do, and reads them.
func (a *Agent) keep(id pki.Identity, cert []byte, keys map[pki.Identity]ed25519.PrivateKey) (*pki.Signer, error) {
	name := a.f.path(strings.ReplaceAll(id.Name, "/", "."))
	if err := pki.WriteHalf(name+".pem", name+".key", cert, keys[id]); err != nil {
		return nil, err
	}
	defer func() { _, _ = os.Remove(name+".pem"), os.Remove(name+".key") }()
	return pki.LoadSigner(name+".pem", name+".key")
}
