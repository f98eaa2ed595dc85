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
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits of enrolments.
const (
	// enrolRate and enrolBurst bound the requests that a replica looks at: each costs a read with a quorum, or a question to
	// an API server.
	enrolRate, enrolBurst = 50, 200
	// maxJoiningSpares bounds the nodes that have enrolled and wait for a place.
	maxJoiningSpares = 2048
	// maxEvidence bounds a token's text, in bytes.
	maxEvidence = 16 << 10
)

// Bounds of tokens.
const (
	tokenLifetime                      = 10 * time.Minute
	minTokenLifetime, maxTokenLifetime = time.Minute, 168 * time.Hour
	maxTokenUses                       = 10_000
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
	// ServiceAccount returns the node whose pod has a service account's token, and labels for it; nil: no such token is
	// accepted.
	ServiceAccount func(ctx context.Context, token string) (fault.NodeID, map[string]string, error)
	// Foreign returns the node that a certificate of another authority names; nil: none is accepted.
	Foreign func(chain []*x509.Certificate) (fault.NodeID, error)
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

	s     *Server
	cfg   EnrolmentConfig
	limit *rate.Limiter
}

// NewEnrolment returns the service; s commits its changes.
func NewEnrolment(s *Server, cfg EnrolmentConfig) *Enrolment {
	return &Enrolment{s: s, cfg: cfg, limit: rate.NewLimiter(enrolRate, enrolBurst)}
}

// Enrol implements the service.
func (e *Enrolment) Enrol(ctx context.Context, req *lofamov1.EnrolRequest) (*lofamov1.EnrolResponse, error) {
	if !e.limit.Allow() {
		e.cfg.Count("dropped")
		return nil, status.Error(codes.ResourceExhausted, "too many nodes enrol at once: try again in a moment")
	}
	resp, err := e.enrol(ctx, req)
	log := e.cfg.Logger.With("node", fmt.Sprintf("%.64q", req.GetNode()))
	if err != nil {
		e.cfg.Count("refused")
		log.Info("enrolment refused", "err", err)
		return nil, err
	}
	e.cfg.Count("enrolled")
	log.Info("node enrolled", "service", req.GetService())
	return resp, nil
}

func (e *Enrolment) enrol(ctx context.Context, req *lofamov1.EnrolRequest) (*lofamov1.EnrolResponse, error) {
	if e.cfg.Issuer == nil {
		return nil, status.Error(codes.FailedPrecondition, "this supervisor signs no certificates: want renewal.cert in its configuration")
	}
	now := time.Now()
	if _, err := enrolling(req.GetNode(), req.GetService(), req.GetLabels()); err != nil {
		return nil, err
	}
	theirs := req.GetClock().AsTime() // of the wall clock, which certificates are about
	if theirs.Before(now.Add(-pki.EnrolClocks)) || theirs.After(now.Add(pki.EnrolClocks)) {
		return nil, status.Errorf(codes.FailedPrecondition, "clock: the node says it is %s, here it is %s: want less than %s between: "+
			"set its clock",
			theirs.Format(time.RFC3339), now.UTC().Format(time.RFC3339), pki.EnrolClocks)
	}
	node := fault.NodeID(req.GetNode())
	keys := map[fault.Half]ed25519.PublicKey{fault.HalfHost: req.GetHostKey(), fault.HalfDNP: req.GetDnpKey()}
	proofs := map[fault.Half][]byte{fault.HalfHost: req.GetHostProof(), fault.HalfDNP: req.GetDnpProof()}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := pki.CheckProof(keys[h], pki.NodeIdentity(e.cfg.Cluster, node, h), proofs[h]); err != nil {
			return nil, invalid(h.String()+"_key", "the key does not prove itself for cluster %s", e.cfg.Cluster)
		}
	}
	if keys[fault.HalfHost].Equal(keys[fault.HalfDNP]) {
		return nil, invalid("dnp_key", "the key is also that of the host half: want one for each")
	}
	admit := &lofamov1.AdmitRequest{Node: req.GetNode(), Service: req.GetService(), Labels: req.GetLabels(), Key: req.GetHostKey()}
	if err := e.evidence(ctx, req, admit, now); err != nil {
		return nil, err
	}
	if _, err := leadAs(ctx, e.s, "node/"+req.GetNode(), e.doAdmit(admit), askAdmit(admit)); err != nil {
		return nil, err
	}
	ca, err := e.cfg.CA()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	resp := &lofamov1.EnrolResponse{Cluster: e.cfg.Cluster, Node: req.GetNode(), Ca: ca, GossipKeys: e.cfg.Answer.GetGossipKeys(),
		Preset: e.cfg.Answer.GetPreset(), Periods: e.cfg.Answer.GetPeriods(), Gossip: e.cfg.Answer.GetGossip(),
		Supervisors: preferred(e.cfg.Answer.GetSupervisors(), node)}
	for h, to := range map[fault.Half]*[]byte{fault.HalfHost: &resp.HostCertificate, fault.HalfDNP: &resp.DnpCertificate} {
		if *to, err = e.cfg.Issuer.Issue(now, pki.NodeIdentity(e.cfg.Cluster, node, h), keys[h], e.cfg.Lifetime); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return resp, nil
}

// preferred turns the list, so that nodes prefer different supervisors.
func preferred(all []*lofamov1.EnrolmentSupervisor, node fault.NodeID) []*lofamov1.EnrolmentSupervisor {
	if len(all) == 0 {
		return nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // never fails
	i := int(h.Sum32() % uint32(len(all)))
	return slices.Concat(all[i:], all[:i])
}

// enrolling checks what a node says of itself.
func enrolling(node string, service []string, labels map[string]string) (topology.Node, error) {
	n, err := topology.NodeFromProto(0, &lofamov1.TopologyNode{Id: node, Service: service, Labels: labels})
	if err != nil {
		return n, invalidTopology(err)
	}
	if len(service) == 0 {
		return n, invalid("service", "given none: want at least one address")
	}
	return n, nil
}

// evidence checks the evidence of a request, and notes in admit what it proves.
func (e *Enrolment) evidence(ctx context.Context, req *lofamov1.EnrolRequest, admit *lofamov1.AdmitRequest, now time.Time) error {
	if len(req.GetToken()) > maxEvidence || len(req.GetServiceAccountToken()) > maxEvidence {
		return invalid("token", "given more than %d bytes", maxEvidence)
	}
	node := fault.NodeID(req.GetNode())
	if _, ok := req.GetLabels()[topology.EnrolledBy]; ok {
		return invalid("labels", "%s: want it left out: the supervisors set it", topology.EnrolledBy)
	}
	chain := shown(ctx)
	if len(chain) > 0 {
		if id, err := e.cfg.Member(chain[0].Raw); err == nil && id.Role == pki.RoleNode {
			if o, ok := id.Origin(); !ok || o.Node != node {
				return status.Errorf(codes.PermissionDenied, "the certificate is of %s: want one of node %s", id, node)
			}
			if _, in := e.s.cfg.Names.Topology().Node(node); in {
				admit.Known = true
				return nil
			}
			// It was forgotten: other evidence counts.
			chain = nil
		}
	}
	var named fault.NodeID
	var err error
	switch {
	case req.GetServiceAccountToken() != "" && e.cfg.ServiceAccount != nil:
		var labels map[string]string
		named, labels, err = e.cfg.ServiceAccount(ctx, req.GetServiceAccountToken())
		admit.Labels = maps.Clone(admit.GetLabels())
		for key, value := range labels {
			if admit.Labels == nil {
				admit.Labels = make(map[string]string)
			}
			admit.Labels[key] = value
		}
	case req.GetServiceAccountToken() != "":
		err = errors.New("service_account_token: the supervisors accept none: want enrolment.kubernetes in their configuration")
	case req.GetToken() != "":
		admit.Token, admit.Named, err = e.token(ctx, req.GetToken(), node, now)
		return err
	case len(chain) > 0 && e.cfg.Foreign != nil:
		named, err = e.cfg.Foreign(chain)
	default:
		err = fmt.Errorf("no evidence: node %s is not in the topology, and shows no token", node)
	}
	if err != nil {
		if _, is := status.FromError(err); is {
			return err
		}
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if named != node {
		return status.Errorf(codes.PermissionDenied, "the evidence is for node %s: want it for %s", named, node)
	}
	admit.Named = true
	return nil
}

// shown returns the certificates that the caller showed in the handshake. Nothing has verified them.
func shown(ctx context.Context) []*x509.Certificate {
	if info, ok := tlsInfo(ctx); ok {
		return info.State.PeerCertificates
	}
	return nil
}

// errToken is the answer to a wrong token. It does not tell an unknown one from one with a wrong secret.
var errToken = status.Error(codes.Unauthenticated, "token: unknown: it has expired, was revoked, or is of another cluster: make one with "+
	"'lofamoctl token create'")

// token checks a token's text, and returns its id and whether it is for this node alone.
func (e *Enrolment) token(ctx context.Context, text string, node fault.NodeID, now time.Time) (id string, named bool, err error) {
	t, err := pki.ParseJoinToken(text)
	if err != nil {
		return "", false, status.Error(codes.Unauthenticated, err.Error())
	}
	have, ok, err := e.cfg.Tokens.Token(ctx, t.ID)
	switch {
	case err != nil:
		return "", false, status.Error(codes.Unavailable, err.Error())
	case !ok || !t.Is(have.Sum) || now.After(have.Expires):
		return "", false, errToken
	case have.Node != "" && have.Node != string(node):
		return "", false, status.Errorf(codes.PermissionDenied, "token: is for node %s: want it for %s", have.Node, node)
	}
	return t.ID, have.Node != "", nil
}

// Admit implements the service, for other replicas.
func (e *Enrolment) Admit(ctx context.Context, req *lofamov1.AdmitRequest) (*lofamov1.AdmitResponse, error) {
	return leadBy(ctx, e.s, func(ctx context.Context, by string) (*lofamov1.AdmitResponse, error) {
		return e.doAdmit(req)(ctx, by)
	}, askAdmit(req))
}

// askAdmit forwards an admission to the leader.
func askAdmit(req *lofamov1.AdmitRequest) func(context.Context, grpc.ClientConnInterface) (*lofamov1.AdmitResponse, error) {
	return func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.AdmitResponse, error) {
		return lofamov1.NewEnrolmentClient(conn).Admit(ctx, req)
	}
}

// doAdmit adds the node to the topology, and notes the use of its token, in one commit.
func (e *Enrolment) doAdmit(req *lofamov1.AdmitRequest) func(context.Context, string) (*lofamov1.AdmitResponse, error) {
	return func(ctx context.Context, by string) (*lofamov1.AdmitResponse, error) {
		n, err := enrolling(req.GetNode(), req.GetService(), req.GetLabels())
		if err != nil {
			return nil, err
		}
		now := time.Now()
		_, err = e.s.cfg.Operators.Change(ctx, func(have store.Topology) ([]store.Write, error) {
			var token *store.JoinToken
			if req.GetToken() != "" {
				t, ok, err := e.cfg.Tokens.Token(ctx, req.GetToken())
				if err != nil {
					return nil, status.Error(codes.Unavailable, err.Error())
				}
				if !ok || now.After(t.Expires) {
					return nil, errToken
				}
				token = &t
			}
			repeated, err := mayJoin(have.Topology, n.ID, req, token)
			if err != nil {
				return nil, err
			}
			to, err := have.Admit(n)
			if err != nil {
				return nil, refusedJoin(err)
			}
			return admitWrites(have, to, token, repeated, n.ID, req.GetKey(), by, now)
		})
		if err != nil {
			return nil, err
		}
		return &lofamov1.AdmitResponse{}, nil
	}
}

// mayJoin returns an error for a node that must not join, and whether its request is a repeated one.
func mayJoin(have *topology.Topology, id fault.NodeID, req *lofamov1.AdmitRequest, token *store.JoinToken) (repeated bool, err error) {
	old, known := have.Node(id)
	if token != nil {
		sum := sha256.Sum256(req.GetKey())
		used, ok := token.Used[string(id)]
		if repeated = ok && string(used) == string(sum[:]); repeated {
			return true, nil
		}
		if len(token.Used) >= token.Uses {
			return false, status.Errorf(codes.Unauthenticated, "token: used up, by %s: make one with 'lofamoctl token create'", nodesOf(token))
		}
	}
	switch {
	case req.GetKnown() && !known:
		return false, status.Errorf(codes.Unauthenticated, "node %s: not in the topology any more: give it a new token", id)
	case known && !req.GetKnown() && !req.GetNamed():
		where := "a spare"
		if !old.Spare {
			where = "at " + old.Coord.String()
		}
		return false, status.Errorf(codes.AlreadyExists, "node %s: there is one, %s: choose another name, or make a token for this one: "+
			"'lofamoctl token create --node %s'", id, where, id)
	}
	joining := 0
	for _, n := range have.Spares() {
		if n.Joining {
			joining++
		}
	}
	if joining >= maxJoiningSpares {
		return false, status.Errorf(codes.ResourceExhausted, "%d nodes wait for a place already: want fewer than %d", joining, maxJoiningSpares)
	}
	return false, nil
}

// nodesOf lists the nodes that have used a token.
func nodesOf(t *store.JoinToken) string {
	names := tokenInfo(*t).GetNodes()
	const most = 5
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%v and %d more", names[:most], n)
	}
	return fmt.Sprint(names)
}

// admitWrites returns the writes of one admission. A token that changes meanwhile refuses them all.
func admitWrites(have store.Topology, to *topology.Topology, token *store.JoinToken, repeated bool, id fault.NodeID, key []byte, by string,
	now time.Time) ([]store.Write, error) {
	var writes []store.Write
	var err error
	if len(topology.Diff(have.Topology, to)) > 0 {
		if writes, err = store.TopologyWrites(have, to, view.TopologyEvents(have.Topology, to, by, now)); err != nil {
			return nil, err
		}
	}
	if token == nil || repeated {
		return writes, nil
	}
	if len(writes) == 0 {
		writes = []store.Write{{}}
	}
	guard, sum := token.Guard(), sha256.Sum256(key)
	if token.Used == nil {
		token.Used = make(map[string][]byte)
	}
	token.Used[string(id)] = sum[:]
	kv, err := token.Put()
	if err != nil {
		return nil, err
	}
	last := &writes[len(writes)-1]
	last.Puts, last.Guards = append(last.Puts, kv), append(last.Guards, guard)
	return writes, nil
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
		grpc.Creds(bounded.Credentials(conf, func(tls.ConnectionState) string { return "" })),
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
