package api

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Admit implements the service, for other replicas.
func (e *Enrolment) Admit(ctx context.Context, req *lofamov1.AdmitRequest) (*lofamov1.AdmitResponse, error) {
	by, err := subject(ctx)
	if err != nil {
		return nil, err
	}
	return e.admit(ctx, by, req)
}

// admit has the leader add a node to the topology.
func (e *Enrolment) admit(ctx context.Context, by string, req *lofamov1.AdmitRequest) (*lofamov1.AdmitResponse, error) {
	return leadAs(ctx, e.s, by, func(ctx context.Context, by string) (*lofamov1.AdmitResponse, error) {
		return e.commitAdmit(ctx, by, req)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.AdmitResponse, error) {
		return lofamov1.NewEnrolmentClient(conn).Admit(ctx, req)
	})
}

// commitAdmit adds the node to the topology, and notes the use of its token, in one commit.
func (e *Enrolment) commitAdmit(ctx context.Context, by string, req *lofamov1.AdmitRequest) (*lofamov1.AdmitResponse, error) {
	n, err := enrolling(req.GetNode(), req.GetService(), req.GetLabels())
	if err != nil {
		return nil, err
	}
	a := &admittance{node: n.ID, keys: req.GetKeys(), named: req.GetNamed(), own: req.GetOwn(), by: by, now: time.Now()}
	for _, id := range req.GetSilent() {
		a.silent = append(a.silent, fault.NodeID(id))
	}
	_, err = e.s.cfg.Operators.Change(ctx, func(have store.Topology) ([]store.Write, error) {
		if req.GetToken() != "" {
			t, ok, err := e.cfg.Tokens.Token(ctx, req.GetToken())
			if err != nil {
				return nil, status.Error(codes.Unavailable, err.Error())
			}
			if !ok || a.now.After(t.Expires) {
				return nil, errToken
			}
			a.token = &t
		}
		if !a.own {
			if err := e.revoked(n.ID, a.token); err != nil {
				return nil, err
			}
		}
		if err := a.mayJoin(have.Topology); err != nil {
			return nil, err
		}
		old, _ := have.Node(n.ID)
		n.Labels = a.labels(req.GetLabels(), old, req.GetSetLabels())
		to, err := have.Admit(n, a.silent)
		if err != nil {
			return nil, refusedJoin(err)
		}
		return a.writes(have, to)
	})
	if err != nil {
		return nil, err
	}
	return &lofamov1.AdmitResponse{}, nil
}

// admittance is one node that asks to be added to the topology.
type admittance struct {
	node     fault.NodeID
	keys     []byte // sum of the keys of its halves
	named    bool
	own      bool             // the evidence is the node's own certificate
	silent   []fault.NodeID   // have not answered a challenge
	token    *store.JoinToken // nil: other evidence
	by       string
	now      time.Time
	repeated bool // the answer to an earlier request was lost
}

// is reports whether a use was the issue of certificates for these keys of this node.
func (a *admittance) is(use store.JoinUse) bool {
	return use.Node == string(a.node) && bytes.Equal(use.Keys, a.keys)
}

// mayJoin returns an error if the node must not join, and notes whether its request is a repeated one.
func (a *admittance) mayJoin(have *topology.Topology) error {
	old, known := have.Node(a.node)
	if a.token != nil {
		if known && slices.ContainsFunc(a.token.Used, a.is) {
			a.repeated = true
			return nil
		}
		if n := len(a.token.Used); n >= a.token.Uses {
			return status.Errorf(codes.Unauthenticated, "token: used up: %s: make one with 'lofamoctl token create'", fault.Plural(n, "use"))
		}
	}
	if known && !a.named && !a.replaces(old) {
		where := "a spare"
		if !old.Spare {
			where = "at " + old.Coord.String()
		}
		return status.Errorf(codes.AlreadyExists, "node %s: there is one, %s: choose another name, or make a token for this one: "+
			"'lofamoctl token create --node %s'", a.node, where, a.node)
	}
	joining := 0
	for _, n := range have.Spares() {
		if n.Joining {
			joining++
		}
	}
	if joining >= maxJoiningSpares && !known {
		return status.Errorf(codes.ResourceExhausted, "%d nodes wait for a place already: want fewer than %d", joining, maxJoiningSpares)
	}
	return nil
}

// replaces reports whether the node of this name in the topology gives way to another machine: it has never had a place, and does not
// answer.
func (a *admittance) replaces(old topology.Node) bool {
	return !a.own && !a.repeated && old.Joining && slices.Contains(a.silent, a.node)
}

// labels returns the labels of a node: its own, then those in the topology, then those in set; later ones win. A machine gets no label of
// one that it replaces. Without evidence that names the node, such as a token with patterns of names, executors leave it alone until an
// operator confirms the name. Such evidence confirms the name of a known node too.
func (a *admittance) labels(own map[string]string, old topology.Node, set map[string]string) map[string]string {
	out, known := maps.Clone(own), maps.Clone(old.Labels)
	if out == nil {
		out = make(map[string]string)
	}
	if a.replaces(old) {
		known = nil
	}
	if !a.named && (a.token == nil || len(a.token.Names) == 0) {
		out[fault.ManagedLabel] = "false"
	} else if !a.own {
		delete(known, fault.ManagedLabel)
	}
	maps.Copy(out, known)
	maps.Copy(out, set)
	return out
}

// writes returns the writes of one admission. If the token changes meanwhile, none is committed.
func (a *admittance) writes(have store.Topology, to *topology.Topology) ([]store.Write, error) {
	var writes []store.Write
	var err error
	if len(topology.Diff(have.Topology, to)) > 0 {
		if writes, err = store.TopologyWrites(have, to, view.TopologyEvents(have.Topology, to, a.by, a.now)); err != nil {
			return nil, err
		}
	}
	if a.token == nil || a.repeated {
		return writes, nil
	}
	if len(writes) == 0 {
		writes = []store.Write{{}}
	}
	guard := a.token.Guard()
	a.token.Used = append(a.token.Used, store.JoinUse{Node: string(a.node), Keys: a.keys, At: a.now})
	kv, err := a.token.Put()
	if err != nil {
		return nil, err
	}
	last := &writes[len(writes)-1]
	last.Puts, last.Guards = append(last.Puts, kv), append(last.Guards, guard)
	return writes, nil
}
