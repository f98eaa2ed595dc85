package api

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits of enrolments.
const (
	// enrolRate and enrolBurst bound the requests that a replica looks at: each costs a read with a quorum, or a request to
	// a Kubernetes API server. Each token has such a budget of its own, and all requests of strangers share one.
	enrolRate, enrolBurst = 50, 200
	// sourceRate and sourceBurst bound the requests of strangers from one address, maxSources the addresses that are remembered.
	sourceRate, sourceBurst, maxSources = 10, 40, 4096
	// targetRate and targetBurst bound the challenges to the service address of one machine, those for the life of one node, and all
	// requests of a node with its own certificate.
	targetRate, targetBurst = 2, 20
	logBurst                = 20
	// enrolTime bounds the work for one request.
	enrolTime = 10 * time.Second
	// quorumTime bounds the read of the stored topology's revision. A node that starts divides 3 s among all supervisors.
	quorumTime = time.Second
	// issuerPart is the smallest rest of the issuer's lifetime, as a part of a certificate's.
	issuerPart = 8
	// ownLabels begins the keys of labels that have a meaning for supervisors.
	ownLabels = "lofamo.io/"
	// maxJoiningSpares bounds the nodes that have enrolled and wait for a place.
	maxJoiningSpares = 2048
	// maxEvidence bounds a token's text, in bytes.
	maxEvidence = 16 << 10
)

// Bounds of tokens.
const (
	tokenLifetime                      = 10 * time.Minute
	minTokenLifetime, maxTokenLifetime = time.Minute, 168 * time.Hour
	maxTokenUses                       = 500 // each use rewrites the token with all uses before it
	maxPatterns, maxPattern            = 16, 64
)

// Tokens is the store of tokens.
type Tokens interface {
	Tokens(ctx context.Context) ([]store.JoinToken, error)
	Token(ctx context.Context, id string) (store.JoinToken, bool, error)
}

// EnrolmentConfig configures enrolments.
type EnrolmentConfig struct {
	Cluster string
	Tokens  Tokens
	// Pin returns the pin of the cluster's authority, and CA the file with all authorities.
	Pin func() ([32]byte, error)
	CA  func() ([]byte, error)
	// Issuer signs certificates with Lifetime; nil: this replica signs none.
	Issuer   *pki.Issuer
	Lifetime time.Duration
	// Member verifies the certificate of a node of the cluster.
	Member func(der []byte) (pki.Identity, error)
	// Stored reads the revision of the stored topology with a quorum; 0: none is stored.
	Stored func(context.Context) (uint64, error)
	// ServiceAccount returns the node whose pod has a service account's token, and labels for it; nil: no such token is
	// accepted.
	ServiceAccount func(ctx context.Context, token string) (fault.NodeID, map[string]string, error)
	// Foreign returns the node that a certificate of another authority names; nil: none is accepted.
	Foreign func(chain []*x509.Certificate) (fault.NodeID, error)
	// Revoked returns when the certificates of a node were revoked; false: they were not.
	Revoked func(fault.NodeID) (time.Time, bool)
	// OptOut is the label that keeps responses from a node.
	OptOut string
	// Lives reports whether a node answers a challenge; via are its neighbours.
	Lives func(ctx context.Context, node fault.NodeID, via []fault.NodeID) bool
	// ChallengeAddress sends a datagram to the service address of this number.
	ChallengeAddress func(number int, to netip.AddrPort, b []byte)
	// Own returns the addresses of the supervisors and of their services, which no node can have. Local says that all
	// supervisors are on loopback addresses, as in a cluster on one machine: then nodes may be too.
	Own   func() map[netip.AddrPort]string
	Local bool
	// Answer has what all nodes get: gossip keys and addresses, periods and supervisors.
	Answer *lofamov1.EnrolResponse
	// Count counts requests by their results.
	Count  func(result string)
	Logger *slog.Logger
}

// EnrolResults are the results that EnrolmentConfig.Count counts.
func EnrolResults() []string { return []string{"enrolled", "refused", "dropped"} }

// Enrolment implements lofamov1.EnrolmentServer.
type Enrolment struct {
	lofamov1.UnimplementedEnrolmentServer

	s       *Server
	cfg     EnrolmentConfig
	limit   *rate.Limiter // of all requests of strangers that look good
	sources *budgets
	known   *budgets // by token
	members *budgets // by node, with its own certificate
	tokens  tokenList
	targets *budgets      // the machines that are challenged
	proofs  addressProofs // of the owners of addresses
	logs    *rate.Limiter // of refusals in the log
}

// NewEnrolment returns the service; s commits its changes.
func NewEnrolment(s *Server, cfg EnrolmentConfig) *Enrolment {
	return &Enrolment{s: s, cfg: cfg, limit: rate.NewLimiter(enrolRate, enrolBurst), logs: rate.NewLimiter(1, logBurst),
		sources: newBudgets(sourceRate, sourceBurst), known: newBudgets(enrolRate, enrolBurst), members: newBudgets(targetRate, targetBurst),
		targets: newBudgets(targetRate, targetBurst), proofs: newAddressProofs()}
}

// Enrol implements the service.
func (e *Enrolment) Enrol(ctx context.Context, req *lofamov1.EnrolRequest) (*lofamov1.EnrolResponse, error) {
	known, err := e.allow(ctx, req)
	if err != nil {
		e.cfg.Count("dropped")
		return nil, err
	}
	resp, err := e.enrol(ctx, req, known)
	log := e.cfg.Logger.With("node", fmt.Sprintf("%.64q", req.GetNode()))
	switch {
	case err == nil:
		e.cfg.Count("enrolled")
		log.Info("node enrolled", "service", req.GetService())
	case status.Code(err) == codes.ResourceExhausted:
		e.cfg.Count("dropped")
	default:
		e.cfg.Count("refused")
		if e.logs.Allow() { // strangers cannot fill the log
			log.Info("enrolment refused", "err", err)
		}
	}
	return resp, err
}

func (e *Enrolment) enrol(ctx context.Context, req *lofamov1.EnrolRequest, known bool) (*lofamov1.EnrolResponse, error) {
	now := time.Now()
	claim, keys, err := e.check(req, now)
	if err != nil {
		return nil, err
	}
	if !known && !e.limit.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many nodes enrol at once: try again in a moment")
	}
	ctx, cancel := context.WithTimeout(ctx, enrolTime)
	defer cancel()
	own, err := e.member(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, err := e.answer(req)
	if err != nil || own && e.reachable(claim) {
		return resp, err
	}
	if left := e.cfg.Issuer.Ends().Sub(now); !own && left < e.cfg.Lifetime/issuerPart {
		return nil, status.Errorf(codes.FailedPrecondition, "the issuer's certificate ends in %s: change the keys", left.Round(time.Second))
	}
	admit, err := e.evidence(ctx, req, own, now)
	if err != nil {
		return nil, err
	}
	if proved, err := e.prove(ctx, claim, req, admit); err != nil || !proved {
		return &lofamov1.EnrolResponse{Prove: true}, err
	}
	if _, err := e.admit(ctx, "node/"+req.GetNode(), admit); err != nil || own { // then its halves have certificates, and renew them
		return resp, err
	}
	for h, to := range map[fault.Half]*[]byte{fault.HalfHost: &resp.HostCertificate, fault.HalfDNP: &resp.DnpCertificate} {
		id := pki.NodeIdentity(e.cfg.Cluster, fault.NodeID(req.GetNode()), h)
		if *to, err = e.cfg.Issuer.Issue(now, id, keys[h], e.cfg.Lifetime); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return resp, nil
}

// check checks what needs no other party, and returns the node as the request describes it, and the keys of both halves.
func (e *Enrolment) check(req *lofamov1.EnrolRequest, now time.Time) (topology.Node, map[fault.Half]ed25519.PublicKey, error) {
	claim, err := enrolling(req.GetNode(), req.GetService(), req.GetLabels())
	if err == nil {
		err = e.mayHave(claim.Service)
	}
	if err == nil {
		err = e.checkRequest(req, now)
	}
	if err != nil {
		return claim, nil, err
	}
	keys, err := e.keys(req)
	return claim, keys, err
}

// checkRequest checks the labels, the size and the clock of a request.
func (e *Enrolment) checkRequest(req *lofamov1.EnrolRequest, now time.Time) error {
	if e.cfg.Issuer == nil {
		return status.Error(codes.FailedPrecondition, "this supervisor signs no certificates: want renewal.cert in its configuration")
	}
	for key := range req.GetLabels() {
		if strings.HasPrefix(key, ownLabels) || key == e.cfg.OptOut {
			return invalid("labels", "given %s: want none that only operators and supervisors may set", key)
		}
	}
	if len(req.GetToken()) > maxEvidence || len(req.GetServiceAccountToken()) > maxEvidence {
		return invalid("token", "given more than %d bytes", maxEvidence)
	}
	theirs := req.GetClock().AsTime() // of the wall clock, which certificates are about
	if theirs.Before(now.Add(-pki.EnrolClocks)) || theirs.After(now.Add(pki.EnrolClocks)) {
		return status.Errorf(codes.FailedPrecondition, "clock: the node says it is %s, here it is %s: want less than %s between: "+
			"set its clock", theirs.Format(time.RFC3339), now.UTC().Format(time.RFC3339), pki.EnrolClocks)
	}
	return nil
}

// keys returns the keys of both halves, which the request proves.
func (e *Enrolment) keys(req *lofamov1.EnrolRequest) (map[fault.Half]ed25519.PublicKey, error) {
	keys := map[fault.Half]ed25519.PublicKey{fault.HalfHost: req.GetHostKey(), fault.HalfDNP: req.GetDnpKey()}
	proofs := map[fault.Half][]byte{fault.HalfHost: req.GetHostProof(), fault.HalfDNP: req.GetDnpProof()}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := pki.CheckProof(keys[h], pki.NodeIdentity(e.cfg.Cluster, fault.NodeID(req.GetNode()), h), proofs[h]); err != nil {
			return nil, invalid(h.String()+"_proof", "given one that does not prove itself: want the key's signature for this node of cluster %s",
				e.cfg.Cluster)
		}
	}
	if keys[fault.HalfHost].Equal(keys[fault.HalfDNP]) {
		return nil, invalid("dnp_key", "the key is also that of the host half: want one for each")
	}
	return keys, nil
}

// answer returns what every node gets.
func (e *Enrolment) answer(req *lofamov1.EnrolRequest) (*lofamov1.EnrolResponse, error) {
	ca, err := e.cfg.CA()
	if err != nil {
		e.cfg.Logger.Error("a node cannot enrol", "err", err)
		return nil, status.Error(codes.Unavailable, "this supervisor cannot read its authorities: its log says why")
	}
	return &lofamov1.EnrolResponse{Cluster: e.cfg.Cluster, Node: req.GetNode(), Ca: ca, GossipKeys: e.cfg.Answer.GetGossipKeys(),
		Preset: e.cfg.Answer.GetPreset(), Periods: e.cfg.Answer.GetPeriods(), Gossip: e.cfg.Answer.GetGossip(),
		Supervisors: preferred(e.cfg.Answer.GetSupervisors(), fault.NodeID(req.GetNode()))}, nil
}

// preferred rotates the list by a sum of the name, so that nodes prefer different supervisors.
func preferred(all []*lofamov1.EnrolmentSupervisor, node fault.NodeID) []*lofamov1.EnrolmentSupervisor {
	if len(all) == 0 {
		return nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // never fails
	i := int(h.Sum32() % uint32(len(all)))
	return slices.Concat(all[i:], all[:i])
}

// broadcast is the address of all machines of a network.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// enrolling checks the name, the addresses and the labels of a node.
func enrolling(node string, service []string, labels map[string]string) (topology.Node, error) {
	n, err := topology.NodeFromProto(0, &lofamov1.TopologyNode{Id: node, Service: service, Labels: labels})
	if err != nil {
		return n, invalidTopology(err)
	}
	if fault.IsLoopbackName(node) {
		return n, invalid("node", "given %s: want a name of its own: every machine has this one", node)
	}
	if len(service) == 0 {
		return n, invalid("service", "given none: want at least one address")
	}
	for i, a := range n.Service {
		if ip := a.Addr(); ip.IsMulticast() || ip == broadcast {
			return n, invalid(fmt.Sprintf("service[%d]", i), "given %s: want an address of one machine", a)
		}
	}
	return n, nil
}

// member reports whether the caller shows a good certificate of the node itself, which is in the topology. Such a node gets
// the present settings and no certificate: its halves renew theirs. A certificate of a node that was removed proves nothing. Only a
// replica with a quorum can say that a node was removed.
func (e *Enrolment) member(ctx context.Context, req *lofamov1.EnrolRequest) (bool, error) {
	of, err := e.certified(ctx)
	if err != nil || of == "" {
		return false, err
	}
	node := fault.NodeID(req.GetNode())
	if of != node {
		return false, status.Errorf(codes.PermissionDenied, "the certificate is of node %s: want one of node %s", of, node)
	}
	if _, in := e.s.cfg.Names.Topology().Node(node); in {
		return true, nil
	}
	return e.added(ctx, node)
}

// certified returns the node of the cluster whose good certificate the caller shows; "": it shows none.
func (e *Enrolment) certified(ctx context.Context) (fault.NodeID, error) {
	chain := shown(ctx)
	if len(chain) == 0 {
		return "", nil
	}
	id, err := e.cfg.Member(chain[0].Raw)
	if errors.Is(err, pki.ErrRevoked) {
		return "", status.Error(codes.PermissionDenied, "the node's certificate was revoked: empty its state directory, so that it makes "+
			"new keys")
	}
	if o, ok := id.Origin(); err == nil && ok && id.Role == pki.RoleNode {
		return o.Node, nil
	}
	return "", nil // another authority's, or too old: other evidence counts
}

// added reports whether a node that was missing in this replica's topology is in the stored one. It returns an error if the replica
// has no quorum or lags behind the store: a refusal would keep a healthy node from starting.
func (e *Enrolment) added(ctx context.Context, node fault.NodeID) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, quorumTime)
	defer cancel()
	stored, err := e.cfg.Stored(ctx)
	if err != nil {
		return false, status.Errorf(codes.Unavailable, "node %s: this supervisor cannot read the topology with a quorum now: %v", node, err)
	}
	top := e.s.cfg.Names.Topology()
	if top.Revision < stored {
		return false, status.Errorf(codes.Unavailable, "node %s: this supervisor has not read the latest topology yet", node)
	}
	_, in := top.Node(node)
	return in, nil
}

// evidence checks the evidence of a request, and returns what it proves. own says that the node has shown its own certificate.
func (e *Enrolment) evidence(ctx context.Context, req *lofamov1.EnrolRequest, own bool, now time.Time) (*lofamov1.AdmitRequest, error) {
	node := fault.NodeID(req.GetNode())
	sum := sha256.Sum256(slices.Concat(req.GetHostKey(), req.GetDnpKey()))
	admit := &lofamov1.AdmitRequest{Node: req.GetNode(), Service: req.GetService(), Labels: maps.Clone(req.GetLabels()), Keys: sum[:]}
	var named fault.NodeID
	var err error
	chain := shown(ctx)
	switch {
	case own: // a certificate that was not revoked
		admit.Named, admit.Own = true, true
		return admit, nil
	case req.GetServiceAccountToken() != "" && e.cfg.ServiceAccount != nil:
		named, admit.SetLabels, err = e.cfg.ServiceAccount(ctx, req.GetServiceAccountToken())
		maps.DeleteFunc(admit.Labels, func(key, _ string) bool { return slices.Contains(e.s.cfg.Names.Topology().DomainLabels, key) })
	case req.GetServiceAccountToken() != "":
		err = errors.New("service_account_token: the supervisors accept none: want enrolment.kubernetes in their configuration")
	case req.GetToken() != "":
		t, err := e.token(ctx, req.GetToken(), node, now)
		if err == nil {
			err = e.revoked(node, &t)
		}
		if err != nil {
			return nil, err
		}
		admit.Token, admit.Named = t.ID, t.Node != ""
		return admit, nil
	case len(chain) > 0 && e.cfg.Foreign != nil:
		named, err = e.cfg.Foreign(chain)
	default:
		err = fmt.Errorf("no evidence: node %s shows neither a token nor a valid certificate that the supervisors accept", node)
	}
	if err == nil && named != node {
		err = status.Errorf(codes.PermissionDenied, "the evidence is for node %s: want it for %s", named, node)
	}
	if err == nil {
		err = e.revoked(node, nil)
	}
	if err != nil {
		if _, is := status.FromError(err); is {
			return nil, err
		}
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	admit.Named = true
	return admit, nil
}

// revoked returns an error for a node whose certificates were revoked. A token that an operator has made for it since then
// lets it in again.
func (e *Enrolment) revoked(node fault.NodeID, t *store.JoinToken) error {
	at, is := e.cfg.Revoked(node)
	if !is || t != nil && t.Node == string(node) && t.Made.After(at) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "node %s: its certificates were revoked at %s: want a later token for it, by "+
		"'lofamoctl token create --node %s'", node, at.UTC().Format(time.RFC3339), node)
}

// shown returns the certificates that the caller showed in the handshake. Nothing has verified them.
func shown(ctx context.Context) []*x509.Certificate {
	if info, ok := tlsInfo(ctx); ok {
		return info.State.PeerCertificates
	}
	return nil
}

// errToken is the answer to a wrong token. It does not distinguish an unknown token from a wrong secret.
var errToken = status.Error(codes.Unauthenticated, "token: unknown: it is wrong, expired, revoked, or from another cluster: make one with "+
	"'lofamoctl token create'")

// token checks a token's text, and returns the stored token.
func (e *Enrolment) token(ctx context.Context, text string, node fault.NodeID, now time.Time) (store.JoinToken, error) {
	t, err := pki.ParseJoinToken(text)
	if err != nil {
		return store.JoinToken{}, status.Error(codes.Unauthenticated, err.Error())
	}
	have, ok, err := e.cfg.Tokens.Token(ctx, t.ID)
	switch {
	case err != nil:
		return have, status.Error(codes.Unavailable, err.Error())
	case !ok || !t.Is(have.Sum) || now.After(have.Expires):
		return have, errToken
	case have.Node != "" && have.Node != string(node):
		return have, status.Errorf(codes.PermissionDenied, "token: is for node %s: want it for %s", have.Node, node)
	case len(have.Names) > 0 && !slices.ContainsFunc(have.Names, func(pattern string) bool { return matches(pattern, node) }):
		return have, status.Errorf(codes.PermissionDenied, "token: is for names like %s: want such a name instead of %s, or a token of "+
			"'lofamoctl token create --names' for it", strings.Join(have.Names, ", "), node)
	}
	return have, nil
}

// matches reports whether a pattern of a token fits a node's name.
func matches(pattern string, node fault.NodeID) bool {
	fits, err := path.Match(pattern, string(node))
	return err == nil && fits
}

// Limits of connections to the enrolment address.
const (
	enrolIdle    = 10 * time.Second
	enrolAge     = 30 * time.Second
	enrolMessage = 64 << 10 // bytes of a request
	enrolStreams = 4
)

// NewEnrolmentServer returns the gRPC server of the enrolment address. It serves Enrol alone.
func NewEnrolmentServer(conf *tls.Config, e *Enrolment) *grpc.Server {
	srv := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(conf)), // connections keep counting for their source, for nobody has proved who it is
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(enrolStreams),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.MaxRecvMsgSize(enrolMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: enrolIdle, MaxConnectionAge: enrolAge,
			MaxConnectionAgeGrace: enrolAge}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			if info.FullMethod != lofamov1.Enrolment_Enrol_FullMethodName {
				return nil, status.Errorf(codes.PermissionDenied, "%s: not at this address: nodes enrol here, and the API has another address",
					info.FullMethod)
			}
			return handler(ctx, req)
		}),
	)
	lofamov1.RegisterEnrolmentServer(srv, e)
	return srv
}
