package daemon

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
)

// Files of a node that has enrolled, in joinDir of the state directory. The answer is written last: without it, the node has
// not enrolled.
const (
	joinDir    = config.JoinedDir
	joinAgent  = config.JoinedAgent
	joinAnswer = "answer.json"
	joinLock   = "lock"
	pendingKey = ".pending" // follows the name of a key's file until the answer to the request is stored
)

// Times of enrolments.
const (
	// joinTry bounds one request.
	joinTry = 5 * time.Second
	// joinPause is the first pause between two rounds of requests to all supervisors. It doubles up to joinPauseMost.
	joinPause, joinPauseMost = time.Second, 8 * time.Second
	// joinAsk limits how long a daemon asks about a stored enrolment before it uses that one.
	joinAsk = 3 * time.Second
	// maxJoinFile bounds the files that are read, in bytes.
	maxJoinFile = 1 << 20
	maxToken    = 16 << 10
)

// JoinedFile returns the configuration of a node that has enrolled, if there is one in a state directory.
func JoinedFile(stateDir string) (string, bool) {
	file := filepath.Join(stateDir, joinDir, joinAgent)
	_, err := os.Stat(file)
	return file, err == nil
}

// Join enrols the node with the supervisors, unless it has enrolled before, and writes its complete configuration to a
// file of the state directory. It tries until ctx ends, or until the supervisors refuse the node.
func Join(ctx context.Context, a config.Agent, log *slog.Logger) (config.Agent, string, *Later, error) {
	a, note, err := JoinName(a)
	if err != nil {
		return a, "", nil, err
	}
	if err := a.ValidateJoin(); err != nil {
		return a, "", nil, half.InvalidConfig(err)
	}
	if note != "" {
		log.Warn(note)
	}
	if err := preflight(a); err != nil {
		return a, "", nil, err
	}
	j := &joiner{cfg: a, dir: filepath.Join(a.StateDir, joinDir), log: log.With("node", string(a.Node))}
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return a, "", nil, fmt.Errorf("state directory: %w", err)
	}
	lock, err := j.lock(ctx)
	if err != nil {
		return a, "", nil, err
	}
	defer func() { _ = lock.Close() }()
	joined, answered, err := j.ensure(ctx)
	if err != nil {
		return a, "", nil, err
	}
	out, err := j.complete(joined)
	if err != nil {
		return a, "", nil, err
	}
	return out, j.file(joinAgent), j.later(joined, answered), nil
}

// complete writes and returns the node's complete configuration.
func (j *joiner) complete(joined config.Joined) (config.Agent, error) {
	out := j.cfg.With(joined)
	if err := out.Validate(); err != nil {
		return out, half.InvalidConfig(err)
	}
	b, err := yaml.Marshal(out)
	if err == nil {
		err = durable.Replace(j.file(joinAgent), b) // also on a full disk; each start writes it
	}
	if err != nil {
		return out, fmt.Errorf("configuration of the node: %w", err)
	}
	return out, nil
}

// joiner enrols one node.
type joiner struct {
	cfg config.Agent
	dir string
	log *slog.Logger
	own []*pki.Signer // of the host half and the DNP half, with certificates that are good; none: it has not enrolled
	at  netip.Addr    // the address of the stored enrolment, which the machine still has; zero: none
}

// errAddress says that the machine has no more the address of a stored enrolment, whose certificates are good.
var errAddress = errors.New("stored enrolment has another address")

func (j *joiner) file(name string) string { return filepath.Join(j.dir, name) }

// lock waits for another daemon of this node that enrols: each half may have its own.
func (j *joiner) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(j.file(joinLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := durable.Lock(ctx, f, joinPause/10); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// ensure returns the stored enrolment or enrols the node. answered reports whether a supervisor answered this time.
func (j *joiner) ensure(ctx context.Context) (joined config.Joined, answered bool, err error) {
	have, stored := j.stored()
	if errors.Is(stored, errAddress) && !j.lostAtStart(ctx, have.Address) {
		have, stored = j.stored()
	}
	looking, patience := ctx, context.CancelFunc(func() {})
	if stored == nil {
		looking, patience = context.WithTimeout(ctx, joinAsk)
	} else if errors.Is(stored, errAddress) {
		j.log.Warn("this machine has another address than at its enrolment: telling the supervisors", "err", stored)
	} else if _, _, err := j.trust(); err != nil { // no supervisor can help
		if !errors.Is(stored, os.ErrNotExist) {
			err = fmt.Errorf("stored enrolment cannot be used: %w; and the node cannot enrol again: %w", stored, err)
		}
		return config.Joined{}, false, half.InvalidConfig(err)
	} else if !errors.Is(stored, os.ErrNotExist) {
		j.log.Warn("stored enrolment cannot be used: enrolling again", "err", stored)
	}
	defer patience()
	got, err := j.enrol(looking)
	switch {
	case err == nil:
		return j.joined(got), true, nil
	case stored == nil && ctx.Err() == nil && !expelled(err):
		j.log.Warn("starting with the stored enrolment", "enrolled", have.At.Format(time.RFC3339), "err", err)
		return j.joined(have), false, nil
	}
	return config.Joined{}, false, err
}

// refusal is a supervisor's refusal of a node, which asking again does not change.
type refusal struct {
	code codes.Code
	text string
}

func (r *refusal) Error() string { return r.text }

// expelled reports whether an error says that the node does not belong to the cluster any more. Any other error, such as a
// mistake in a supervisor's configuration, does not keep a node with good certificates from its work.
func expelled(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && (r.code == codes.Unauthenticated || r.code == codes.PermissionDenied || r.code == codes.AlreadyExists)
}

// has returns an error if an address is not the node's any more.
func (j *joiner) has(address netip.Addr) error {
	if want := j.cfg.Join.Address; want != "" {
		if want != address.String() {
			return fmt.Errorf("the node's address is %s now, and was %s", want, address)
		}
		return nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("addresses of this machine: %w", err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap().WithZone("") == address {
			return nil
		}
	}
	return fmt.Errorf("this machine does not have the address %s any more", address)
}

// lostAtStart reports whether a node that starts needs another address than that of its enrolment.
func (j *joiner) lostAtStart(ctx context.Context, enrolled netip.Addr) bool {
	if j.cfg.Join.Address != "" {
		return true // a person changed it
	}
	return lost(ctx, lostAtStart, func() bool { return j.has(enrolled) == nil })
}

// stableSource makes the kernel prefer a stable address of this machine to a temporary one of IPv6. It never prefers a deprecated one.
func stableSource(_, _ string, c syscall.RawConn) error {
	const preferPublic = 0x2 // IPV6_PREFER_SRC_PUBLIC
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_ADDR_PREFERENCES, preferPublic) // fails for IPv4
	})
}

// address returns the node's address: that of the configuration, or that from which it reaches a supervisor.
func (j *joiner) address(ctx context.Context) (netip.Addr, error) {
	if j.cfg.Join.Address != "" {
		return netip.ParseAddr(j.cfg.Join.Address)
	}
	if j.at.IsValid() {
		return j.at, nil
	}
	var err error
	for _, to := range j.cfg.Join.Supervisors {
		var c net.Conn
		if c, err = (&net.Dialer{Control: stableSource}).DialContext(ctx, "udp", to); err != nil { // it sends nothing
			continue
		}
		local, _ := netip.ParseAddrPort(c.LocalAddr().String())
		_ = c.Close()
		if a := local.Addr().Unmap().WithZone(""); a.IsValid() && !a.IsUnspecified() {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("join.address: given nothing, and no supervisor can be reached: %w", err)
}

// enrol asks the supervisors, one after the other and round after round, until one lets the node in or all refuse it.
func (j *joiner) enrol(ctx context.Context) (joinedNode, error) {
	pause, said := joinPause, ""
	for {
		got, refused, failed := j.round(ctx, rand.IntN(len(j.cfg.Join.Supervisors)))
		switch {
		case refused == nil && failed == nil:
			return got, nil
		case failed == nil:
			return joinedNode{}, refused
		case ctx.Err() != nil:
			return joinedNode{}, failed
		}
		if err := errors.Join(failed, refused); err.Error() != said {
			said = err.Error()
			j.log.Warn("not enrolled yet: trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return joinedNode{}, failed
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, joinPauseMost)
	}
}

// round asks each supervisor once, from the first one on, until one lets the node in. It returns the last refusal and the last other
// error; both are nil if the node was let in.
func (j *joiner) round(ctx context.Context, first int) (got joinedNode, refused, failed error) {
	all := j.cfg.Join.Supervisors
	for i := range all {
		to := all[(first+i)%len(all)]
		got, err := j.askWithin(ctx, to, len(all)-i)
		switch {
		case err == nil:
			j.log.Info("enrolled", "supervisor", to, "cluster", got.Cluster, "address", got.Address.String())
			return got, nil, nil
		case ctx.Err() != nil:
			return joinedNode{}, refused, fmt.Errorf("enrol at %s: %w", to, err)
		case final(err):
			refused = &refusal{status.Code(err), fmt.Sprintf("enrol at %s: %s", to, status.Convert(err).Message())}
		default:
			failed = fmt.Errorf("enrol at %s: %w", to, err)
		}
	}
	return joinedNode{}, refused, failed
}

// askWithin is ask, and leaves time for the rest of the supervisors in a round: if ctx has an end, each gets an equal part.
func (j *joiner) askWithin(ctx context.Context, to string, rest int) (joinedNode, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(rest))
		defer cancel()
	}
	return j.ask(ctx, to)
}

// final reports whether asking the same supervisor again cannot help.
func final(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.AlreadyExists, codes.InvalidArgument, codes.FailedPrecondition:
		return true
	default:
		return false
	}
}

// trust returns how the node recognises supervisors, and a request with its evidence. A node with good certificates needs no
// other evidence.
func (j *joiner) trust() (pki.JoinTrust, *lofamov1.EnrolRequest, error) {
	c, req, trust := j.cfg.Join, &lofamov1.EnrolRequest{}, pki.JoinTrust{}
	again := len(j.own) > 0
	if !again && c.TokenFile == "" && !c.NamesNode() {
		return trust, nil, errors.New("join.tokenFile, join.serviceAccountTokenFile, join.cert: given none: want one of them, " +
			"such as --token-file FILE, because this machine has no good certificates of an enrolment")
	}
	var err error
	if c.CA != "" {
		if trust.Roots, err = pki.Roots(c.CA); err != nil {
			return trust, nil, err
		}
	}
	if c.TokenFile != "" {
		text, err := readToken(c.TokenFile)
		if err != nil && !again {
			return trust, nil, err
		}
		if token, bad := pki.ParseJoinToken(text); err == nil && bad == nil {
			req.Token = text
			if c.CA == "" {
				trust.Pin = &token.Pin
			}
		} else if err == nil && !again {
			return trust, nil, fmt.Errorf("%s: %w", c.TokenFile, bad)
		}
	}
	if c.ServiceAccountTokenFile != "" {
		if req.ServiceAccountToken, err = readToken(c.ServiceAccountTokenFile); err != nil && !again {
			return trust, nil, err
		}
	}
	if c.Cert != "" {
		if trust.Present, err = pki.PresentedPair(c.Cert, c.Key); err != nil && !again {
			return trust, nil, err
		}
	}
	if again { // its own certificate is the best evidence
		trust.Present = j.own[0].Present()
		known := []string{j.file("ca.pem")} // the supervisors may have certificates of the next authority already
		if c.CA != "" {
			known = append(known, c.CA)
		}
		if trust.Roots, err = pki.Roots(known...); err != nil {
			return trust, nil, err
		}
		trust.Pin = nil
	}
	return trust, req, nil
}

// readToken reads a token's file without the white space at its end.
func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("token: %w", err)
	case len(b) > maxToken:
		return "", fmt.Errorf("token: %s: more than %d bytes", file, maxToken)
	}
	return strings.TrimSpace(string(b)), nil
}

// ask sends one request to one supervisor, and stores a good answer.
func (j *joiner) ask(ctx context.Context, to string) (joinedNode, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTry)
	defer cancel()
	trust, req, err := j.trust()
	if err != nil {
		return joinedNode{}, status.Error(codes.InvalidArgument, err.Error())
	}
	var server atomic.Pointer[pki.Identity]
	conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(trust.TLS(&server))))
	if err != nil {
		return joinedNode{}, err
	}
	defer func() { _ = conn.Close() }()
	if err := connect(ctx, conn); err != nil {
		return joinedNode{}, err
	}
	n := joinedNode{Cluster: server.Load().Cluster, Node: j.cfg.Node, At: time.Now()}
	keys, err := j.fill(ctx, req, &n)
	if err != nil {
		return joinedNode{}, status.Error(codes.InvalidArgument, err.Error())
	}
	cfg := j.cfg.With(j.joined(n))
	if err := checkPorts(cfg); err != nil {
		return joinedNode{}, err
	}
	resp, err := enrolAt(ctx, lofamov1.NewEnrolmentClient(conn), cfg.Service.Interfaces(), req)
	if err != nil {
		return joinedNode{}, err
	}
	if err := j.accept(resp, &n, keys, trust.Pin); err != nil {
		return joinedNode{}, fmt.Errorf("the supervisor's answer: %w", err)
	}
	return n, nil
}

// connect waits for a connection, so that the server's certificate is known before a secret is sent.
func connect(ctx context.Context, conn *grpc.ClientConn) error {
	conn.Connect()
	for {
		s := conn.GetState()
		if s == connectivity.Ready {
			return nil
		}
		if s == connectivity.TransientFailure {
			// A call that does not wait tells why.
			return whyUnconnected(ctx, conn)
		}
		if !conn.WaitForStateChange(ctx, s) {
			return ctx.Err()
		}
	}
}

// whyUnconnected returns why there is no connection. It sends nothing, because there is none.
func whyUnconnected(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := lofamov1.NewEnrolmentClient(conn).ListTokens(ctx, &lofamov1.ListTokensRequest{})
	if err == nil {
		return nil
	}
	return fmt.Errorf("no connection: %s", status.Convert(err).Message())
}

// fill completes a request with the node's keys and addresses.
func (j *joiner) fill(ctx context.Context, req *lofamov1.EnrolRequest, n *joinedNode) (map[pki.Identity]ed25519.PrivateKey, error) {
	var err error
	if n.Address, err = j.address(ctx); err != nil {
		return nil, err
	}
	a := j.cfg.With(j.joined(*n))
	req.Node, req.Labels, req.Clock = string(n.Node), j.cfg.Join.Labels, timestamppb.Now()
	for _, i := range a.Service.Interfaces() {
		req.Service = append(req.Service, i.Listen)
	}
	keys := make(map[pki.Identity]ed25519.PrivateKey)
	for _, of := range []struct {
		half       fault.Half
		file       string
		key, proof *[]byte
	}{
		{fault.HalfHost, "host.key", &req.HostKey, &req.HostProof}, {fault.HalfDNP, "dnp.key", &req.DnpKey, &req.DnpProof},
	} {
		key, err := pki.KeepHalfKey(j.file(of.file + pendingKey))
		if err != nil {
			return nil, err
		}
		id := pki.NodeIdentity(n.Cluster, n.Node, of.half)
		keys[id] = key
		*of.key, *of.proof = key.Public().(ed25519.PublicKey), pki.ProveKey(key, id)
	}
	return keys, nil
}
