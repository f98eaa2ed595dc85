package supervisor_test

import (
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A cluster begins without any node. Its first two nodes join together, and a third one later.
func TestTorusBeginsWithoutNodes(t *testing.T) {
	t.Parallel()
	c, _, leader := three(t, supervisortest.Options{Dims: "0x0x0", Spares: 3})
	at := c.Configs[leader].GRPC
	list, err := c.Client(t, at).ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil || len(list.GetNodes()) != 3 || !list.GetNodes()[0].GetSpare() || list.GetCluster().GetDims() != "0x0x0" {
		t.Fatalf("the map at the beginning is %v, %v", list, err)
	}
	if !list.GetCluster().GetOrdinary() {
		t.Error("a cluster without nodes is no ordinary one")
	}
	for _, a := range c.Agents {
		a.Link(grid.Dims{X: 2, Y: 2, Z: 2}, "")
		a.SayPeers(t, c.Configs[leader].Report)
	}
	op := c.Reconfigure(t, at)
	join := func(dims string, ids ...string) {
		t.Helper()
		req := &lofamov1.JoinNodesRequest{}
		for _, id := range ids {
			req.Nodes = append(req.Nodes, &lofamov1.TopologyNode{Id: id})
		}
		resp, err := op.JoinNodes(t.Context(), req)
		if err != nil || resp.GetDims() != dims {
			t.Fatalf("%v join: %v, %v", ids, resp, err)
		}
	}
	join("2x1x1", "x1", "x2")
	supervisortest.Eventually(t, "both have their places", func() bool {
		return c.Agents["x1"].Peers().GetCoord() == "0,0,0" && c.Agents["x2"].Peers().GetCoord() == "1,0,0"
	})
	join("3x1x1", "x3")
	list, err = c.Client(t, at).ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil || len(list.GetNodes()) != 3 {
		t.Fatalf("the map is %v, %v", list, err)
	}
	if list.GetCluster().GetOrdinary() {
		t.Error("a cluster whose nodes an operator has placed is an ordinary one")
	}
}

// keyOf returns the file of a half's key in the directory of enrolAt.
func keyOf(dir, node string, h fault.Half) string {
	return filepath.Join(dir, url.PathEscape(node)+h.String())
}

// changeKeys makes a node use other keys at its next request.
func changeKeys(dir, node string) error {
	return errors.Join(os.Remove(keyOf(dir, node, fault.HalfHost)), os.Remove(keyOf(dir, node, fault.HalfDNP)))
}

// enrolAt completes a request with the keys in a directory, and sends it to a replica.
func enrolAt(t *testing.T, at config.Supervisor, trust pki.JoinTrust, dir string, req *lofamov1.EnrolRequest,
	change func(*lofamov1.EnrolRequest),
) (*lofamov1.EnrolResponse, error) {
	var server atomic.Pointer[pki.Identity]
	conn, err := grpc.NewClient("passthrough:///"+at.Enrolment.Listen, grpc.WithTransportCredentials(credentials.NewTLS(trust.TLS(&server))))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	req.Clock = timestamppb.Now()
	for h, to := range map[fault.Half][2]*[]byte{
		fault.HalfHost: {&req.HostKey, &req.HostProof}, fault.HalfDNP: {&req.DnpKey, &req.DnpProof},
	} {
		key, err := pki.KeepHalfKey(keyOf(dir, req.GetNode(), h))
		if err != nil {
			return nil, err
		}
		id := pki.NodeIdentity(supervisortest.Name, fault.NodeID(req.GetNode()), h)
		*to[0], *to[1] = key.Public().(ed25519.PublicKey), pki.ProveKey(key, id)
	}
	if change != nil {
		change(req)
	}
	supervisor := lofamov1.NewEnrolmentClient(conn)
	resp, err := supervisor.Enrol(t.Context(), req)
	if err != nil || !resp.GetProve() {
		return resp, err
	}
	socket, err := net.ListenPacket("udp", req.GetService()[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }()
	_ = socket.SetReadDeadline(time.Now().Add(10 * time.Second)) // never fails
	req.Listening = []byte("the node listens")
	if resp, err = supervisor.Enrol(t.Context(), req); err != nil || !resp.GetProve() {
		return resp, err
	}
	b := make([]byte, 2048)
	n, _, err := socket.ReadFrom(b)
	if err != nil {
		return nil, err
	}
	proof, _ := servicenet.AddressProof(b[:n], req.GetListening())
	req.Proofs = [][]byte{proof}
	return supervisor.Enrol(t.Context(), req)
}

// A replica without a quorum cannot know whether a node that its copy of the topology does not have was removed, or enrolled while
// the replica was down. It does not refuse such a node, which asks again. Once there is a quorum, the node gets its settings.
func TestReplicaWithoutQuorumRefusesNoEnrolledNode(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{Dims: "2x1x1", Renewed: 720 * time.Hour, Configure: func(cfg *config.Supervisor) {
		cfg.Enrolment.Listen = freeport.Addr(t).String()
	}})
	late, other := (leader+1)%3, (leader+2)%3
	made, err := lofamov1.NewEnrolmentClient(c.Conn(t, pki.RoleOperator, c.Configs[leader].GRPC)).CreateToken(t.Context(),
		&lofamov1.CreateTokenRequest{Node: "e1"})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := pki.ParseJoinToken(made.GetToken())
	if err != nil {
		t.Fatal(err)
	}
	dir, trust := t.TempDir(), pki.JoinTrust{Pin: &parsed.Pin}
	enrol := func(at int, token string) (*lofamov1.EnrolResponse, error) {
		req := &lofamov1.EnrolRequest{Node: "e1", Service: []string{"127.89.0.1:7100"}, Token: token}
		return enrolAt(t, c.Configs[at], trust, dir, req, nil)
	}
	stop(t, sups[late])
	resp, err := enrol(other, made.GetToken())
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.KeepHalfKey(keyOf(dir, "e1", fault.HalfHost))
	if err != nil {
		t.Fatal(err)
	}
	cert, file := filepath.Join(dir, "host.pem"), filepath.Join(dir, "host.key")
	if err := pki.WriteHalf(cert, file, resp.GetHostCertificate(), key); err != nil {
		t.Fatal(err)
	}
	if trust.Present, err = pki.PresentedPair(cert, file); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{leader, other} {
		_ = sups[i].Stop(t.Context()) // the last cannot resign without a quorum
	}
	again := func(i int) {
		t.Helper()
		if sups[i], err = launch(t, c.Configs[i]); err != nil { // three stops it
			t.Fatal(err)
		}
	}
	again(late)
	_, err = enrol(late, "")
	wantCode(t, "without a quorum", err, codes.Unavailable, "quorum")
	again(other)
	supervisortest.Eventually(t, "the node gets its settings", func() bool {
		resp, err := enrol(late, "")
		return err == nil && len(resp.GetSupervisors()) == 3 && len(resp.GetHostCertificate()) == 0
	})
}

// A node enrols at any replica, also at a follower, with a token that the leader counts. Each wrong request is refused with
// its reason, and changes nothing.
func TestEnrolmentChecksItsEvidence(t *testing.T) {
	t.Parallel()
	c, _, leader := three(t, supervisortest.Options{Dims: "2x1x1", Renewed: 720 * time.Hour, Configure: func(cfg *config.Supervisor) {
		cfg.Enrolment.Listen = freeport.Addr(t).String()
	}})
	follower := c.Configs[(leader+1)%3]
	operator := lofamov1.NewEnrolmentClient(c.Conn(t, pki.RoleOperator, follower.GRPC))
	create := func(req *lofamov1.CreateTokenRequest) string {
		t.Helper()
		resp, err := operator.CreateToken(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetToken()
	}
	two := create(&lofamov1.CreateTokenRequest{Uses: 2})
	dir := t.TempDir()
	parsed, err := pki.ParseJoinToken(two)
	if err != nil {
		t.Fatal(err)
	}
	var shown *tls.Certificate // by the node
	enrol := func(node, address, token string, change func(*lofamov1.EnrolRequest)) (*lofamov1.EnrolResponse, error) {
		trust := pki.JoinTrust{Pin: &parsed.Pin, Present: shown}
		return enrolAt(t, follower, trust, dir, &lofamov1.EnrolRequest{Node: node, Service: []string{address}, Token: token}, change)
	}

	for i := range 2 { // the second request is a repeated one, after a lost answer
		resp, err := enrol("e1", "127.88.0.1:7100", two, nil)
		if err != nil || resp.GetCluster() != supervisortest.Name || len(resp.GetSupervisors()) != 3 {
			t.Fatalf("request %d: %v, %v", i+1, resp, err)
		}
	}
	list, err := operator.ListTokens(t.Context(), &lofamov1.ListTokensRequest{})
	if err != nil || len(list.GetTokens()) != 1 || !slices.Equal(list.GetTokens()[0].GetNodes(), []string{"e1"}) {
		t.Errorf("tokens: %v, %v: want one use, by e1", list, err)
	}

	c.Agents["n1-0-0"].Kill(fault.HalfHost, fault.HalfDNP)
	forE2 := create(&lofamov1.CreateTokenRequest{Node: "e2"})
	for name, w := range map[string]struct {
		node, address, token string
		change               func(*lofamov1.EnrolRequest)
		code                 codes.Code
		says                 string
	}{
		"a bad name":              {"e/1", "127.88.0.9:7100", two, nil, codes.InvalidArgument, "id"},
		"a bad address":           {"e9", "127.88.0.9", two, nil, codes.InvalidArgument, "service"},
		"no address":              {"e9", "", two, func(r *lofamov1.EnrolRequest) { r.Service = nil }, codes.InvalidArgument, "service"},
		"a taken name":            {"n1-0-0", "127.88.0.9:7100", two, nil, codes.AlreadyExists, "token create --node n1-0-0"},
		"a living node's name":    {"n0-0-0", "127.88.0.9:7100", two, nil, codes.AlreadyExists, "it lives"},
		"a living node's address": {"e9", c.Agents["n0-0-0"].Addr(), two, nil, codes.FailedPrecondition, "is that of node n0-0-0, which lives"},
		"a supervisor's address":  {"e9", follower.Report, two, nil, codes.InvalidArgument, "is the report address of a supervisor"},
		"another's token":         {"e9", "127.88.0.9:7100", forE2, nil, codes.PermissionDenied, "is for node e2"},
		"no token":                {"e9", "127.88.0.9:7100", "", nil, codes.Unauthenticated, "no evidence"},
		"a damaged token":         {"e9", "127.88.0.9:7100", two[:len(two)-1], nil, codes.Unauthenticated, "PIN is damaged"},
		"a foreign token":         {"e9", "127.88.0.9:7100", pki.NewJoinToken([32]byte{}).String(), nil, codes.Unauthenticated, "unknown"},
		"a service account": {"e9", "127.88.0.9:7100", "", func(r *lofamov1.EnrolRequest) { r.ServiceAccountToken = "x" }, codes.Unauthenticated,
			"enrolment.kubernetes"},
		"a late clock": {"e9", "127.88.0.9:7100", two, func(r *lofamov1.EnrolRequest) {
			r.Clock = timestamppb.New(time.Now().Add(-3 * time.Hour))
		}, codes.FailedPrecondition, "set its clock"},
		"another's key": {"e9", "127.88.0.9:7100", two, func(r *lofamov1.EnrolRequest) { r.HostProof = r.GetDnpProof() }, codes.InvalidArgument,
			"does not prove itself"},
		"an operator's label": {"e9", "127.88.0.9:7100", two, func(r *lofamov1.EnrolRequest) {
			r.Labels = map[string]string{"lofamo.io/no-response": "true"}
		}, codes.InvalidArgument, "only operators and supervisors"},
		"an address of many": {"e9", "239.0.0.1:7100", two, nil, codes.InvalidArgument, "one machine"},
		"labels": {"e9", "127.88.0.9:7100", two, func(r *lofamov1.EnrolRequest) { r.Labels = map[string]string{"a b": ""} },
			codes.InvalidArgument,
			"labels"},
	} {
		_, err := enrol(w.node, w.address, w.token, w.change)
		if status.Code(err) != w.code || !strings.Contains(status.Convert(err).Message(), w.says) {
			t.Errorf("%s: %v: want %s with %q", name, err, w.code, w.says)
		}
	}
	if _, err := enrol("e2", "127.88.0.2:7100", forE2, nil); err != nil {
		t.Error(err)
	}
	if _, err := enrol("e4", "127.88.0.2:7100", create(&lofamov1.CreateTokenRequest{}), nil); err != nil {
		t.Errorf("with the address of a silent node: %v", err)
	}
	if err := changeKeys(dir, "e1"); err != nil {
		t.Fatal(err)
	}
	if _, err := enrol("e1", "127.88.0.1:7100", create(&lofamov1.CreateTokenRequest{}), nil); err != nil {
		t.Errorf("with the name of a silent node that never had a place: %v", err)
	}
	// A node of the cluster needs no token: its own certificate is its evidence, until it is revoked.
	if shown, err = pki.PresentedPair(filepath.Join(c.Dir, "n0-0-0-host.pem"), filepath.Join(c.Dir, "n0-0-0-host.key")); err != nil {
		t.Fatal(err)
	}
	own := c.Agents["n0-0-0"].Addr()
	_, err = enrol("n0-0-0", "127.88.0.7:7100", "", nil)
	wantCode(t, "with a copy of a living node's key, at another address", err, codes.AlreadyExists, "it answers at ["+own+"]")
	if resp, err := enrol("n0-0-0", own, "", nil); err != nil || len(resp.GetHostCertificate())+len(resp.GetDnpCertificate()) != 0 ||
		len(resp.GetSupervisors()) != 3 {
		t.Errorf("with its own certificate: %v, %v: want the settings, and no certificate: its halves renew theirs", resp, err)
	}
	c.Agents["n0-0-0"].Kill(fault.HalfHost, fault.HalfDNP)
	if resp, err := enrol("n0-0-0", "127.88.0.7:7100", "", nil); err != nil || len(resp.GetHostCertificate()) != 0 {
		t.Errorf("the node itself, which has another address now: %v, %v: want the settings", resp, err)
	}
	if _, err := enrol("e3", own, create(&lofamov1.CreateTokenRequest{}), nil); err == nil {
		t.Error("e3 enrols at an address at which another process listens")
	}
	own = "127.88.0.7:7100"
	_, err = enrol("n1-0-0", c.Agents["n1-0-0"].Addr(), "", nil)
	wantCode(t, "with another node's certificate", err, codes.PermissionDenied, "want one of node n1-0-0")
	before := create(&lofamov1.CreateTokenRequest{Node: "n0-0-0"})
	revoke(t, c, pki.NodeIdentity(supervisortest.Name, "n0-0-0", fault.HalfHost),
		pki.NodeIdentity(supervisortest.Name, "n0-0-0", fault.HalfDNP))
	supervisortest.Eventually(t, "the follower refuses the revoked certificate", func() bool {
		_, err = enrol("n0-0-0", own, create(&lofamov1.CreateTokenRequest{Node: "n0-0-0"}), nil)
		return status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), "revoked")
	})
	shown = nil
	_, err = enrol("n0-0-0", own, before, nil)
	wantCode(t, "with a token from before the revocation", err, codes.PermissionDenied, "want a later token")
	if _, err := enrol("n0-0-0", own, create(&lofamov1.CreateTokenRequest{Node: "n0-0-0"}), nil); err != nil {
		t.Errorf("with a token from after the revocation: %v", err)
	}
	// One use is left: of many nodes at once, one gets it.
	var in atomic.Int32
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			if _, err := enrol(fmt.Sprintf("m%d", i), fmt.Sprintf("127.88.1.%d:7100", i), two, nil); err == nil {
				in.Add(1)
			} else if status.Code(err) != codes.Unauthenticated && status.Code(err) != codes.Aborted {
				t.Errorf("m%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if in.Load() != 1 {
		t.Errorf("%d nodes got the last use of a token: want 1", in.Load())
	}
	top, err := c.Client(t, follower.GRPC).GetTopology(t.Context(), &lofamov1.GetTopologyRequest{})
	if err != nil || len(top.GetNodes()) != 6 {
		t.Errorf("the topology is %v, %v: want two nodes, and four that have enrolled", top, err)
	}
	joining := 0
	for _, n := range top.GetNodes() {
		if n.GetJoining() {
			joining++
		}
	}
	if joining != 4 {
		t.Errorf("%d nodes wait for a place: want 4", joining)
	}
	_, err = operator.RevokeToken(t.Context(), &lofamov1.RevokeTokenRequest{Id: "none"})
	wantCode(t, "an unknown token", err, codes.NotFound, "none")
	_, err = operator.CreateToken(t.Context(), &lofamov1.CreateTokenRequest{Lifetime: durationpb.New(time.Second)})
	wantCode(t, "a short token", err, codes.InvalidArgument, "lifetime")
	_, err = lofamov1.NewEnrolmentClient(c.Conn(t, pki.RoleViewer, follower.GRPC)).ListTokens(t.Context(), &lofamov1.ListTokensRequest{})
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")
	_, err = operator.Enrol(t.Context(), &lofamov1.EnrolRequest{})
	wantCode(t, "at the API", err, codes.PermissionDenied, "Enrol")
}
