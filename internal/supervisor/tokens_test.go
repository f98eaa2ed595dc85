package supervisor_test

import (
	"crypto/tls"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// tokenHall is a supervisor with tokens, and machines that enrol there.
type tokenHall struct {
	office

	operator lofamov1.EnrolmentClient
	topology lofamov1.ReconfigureClient
}

func newTokenHall(t *testing.T) *tokenHall {
	t.Helper()
	c := supervisortest.New(t, supervisortest.Options{Dims: "2x1x1", Renewed: 720 * time.Hour, Configure: func(cfg *config.Supervisor) {
		cfg.Enrolment.Listen = freeport.Addr(t).String()
	}})
	s, err := launch(t, c.Configs[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	conn := c.Conn(t, pki.RoleOperator, c.Configs[0].GRPC)
	h := &tokenHall{office: office{t, c, c.Configs[0]}, operator: lofamov1.NewEnrolmentClient(conn),
		topology: lofamov1.NewReconfigureClient(conn)}
	supervisortest.Eventually(t, "the supervisor leads", func() bool {
		_, err := h.operator.CreateToken(t.Context(), &lofamov1.CreateTokenRequest{})
		return err == nil
	})
	return h
}

// token makes a token.
func (h *tokenHall) token(req *lofamov1.CreateTokenRequest) *lofamov1.CreateTokenResponse {
	h.Helper()
	resp, err := h.operator.CreateToken(h.Context(), req)
	if err != nil {
		h.Fatal(err)
	}
	return resp
}

// enrol has a machine, whose keys are in a directory, ask for certificates.
func (h *tokenHall) enrol(dir, node, token string) error {
	h.Helper()
	_, err := h.ask(dir, node, token, nil)
	return err
}

// ask is enrol by a machine that shows a certificate, or none.
func (h *tokenHall) ask(dir, node, token string, shown *tls.Certificate) (*lofamov1.EnrolResponse, error) {
	h.Helper()
	parsed, err := pki.ParseJoinToken(token)
	if err != nil {
		h.Fatal(err)
	}
	req := &lofamov1.EnrolRequest{Node: node, Service: []string{freeport.Addr(h).String()}, Token: token}
	return enrolAt(h.T, h.cfg, pki.JoinTrust{Pin: &parsed.Pin, Present: shown}, dir, req, nil)
}

// used returns the nodes that have used a token, one for each use.
func (h *tokenHall) used(token *lofamov1.CreateTokenResponse) string {
	h.Helper()
	list, err := h.operator.ListTokens(h.Context(), &lofamov1.ListTokensRequest{})
	if err != nil {
		h.Fatal(err)
	}
	for _, t := range list.GetTokens() {
		if t.GetId() == token.GetInfo().GetId() {
			return strings.Join(t.GetNodes(), " ")
		}
	}
	h.Fatalf("token %s is not listed", token.GetInfo().GetId())
	return ""
}

func (h *tokenHall) forget(node string) {
	h.Helper()
	if _, err := h.topology.LeaveNodes(h.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{node}, Forget: true}); err != nil {
		h.Fatal(err)
	}
}

// A token of two uses lets a forgotten name in twice, whatever its keys are. A repeated request, after a lost answer, has the same keys and
// costs no use.
func TestEachIssueOfCertificatesIsUseOfToken(t *testing.T) {
	t.Parallel()
	h := newTokenHall(t)
	two := h.token(&lofamov1.CreateTokenRequest{Uses: 2})
	for i, dir := range []string{t.TempDir(), t.TempDir()} {
		for range 2 { // the second request is a repeated one
			if err := h.enrol(dir, "e1", two.GetToken()); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := h.used(two), strings.TrimSpace(strings.Repeat("e1 ", i+1)); got != want {
			t.Errorf("after issue %d the token is used by %q: want %q", i+1, got, want)
		}
		h.forget("e1")
		if i == 1 {
			wantCode(t, "the same keys again", h.enrol(dir, "e1", two.GetToken()), codes.Unauthenticated, "used up: 2 uses")
		}
	}
	wantCode(t, "new keys", h.enrol(t.TempDir(), "e1", two.GetToken()), codes.Unauthenticated, "used up: 2 uses")
}

// A token with patterns lets no other names in. A refusal names the name and the patterns, and costs no use.
func TestTokenLetsOnlyItsNamesIn(t *testing.T) {
	t.Parallel()
	h := newTokenHall(t)
	gpus := h.token(&lofamov1.CreateTokenRequest{Uses: 9, Names: []string{"gpu-*", "n[0-9]?"}})
	dir := t.TempDir()
	for _, name := range []string{"login1", "kube-control-plane-1", "n7", "n7x1", "nx1", "my-gpu-1", "GPU-1"} {
		err := h.enrol(dir, name, gpus.GetToken())
		wantCode(t, name, err, codes.PermissionDenied, "names like gpu-*, n[0-9]?: want such a name instead of "+name)
	}
	wantCode(t, "the name of every machine", h.enrol(dir, "localhost", h.token(&lofamov1.CreateTokenRequest{}).GetToken()),
		codes.InvalidArgument, "localhost")
	if got := h.used(gpus); got != "" {
		t.Errorf("refused names have used the token: %s", got)
	}
	if err := h.enrol(dir, "n71", gpus.GetToken()); err != nil {
		t.Error(err)
	}
	list, err := h.operator.ListTokens(t.Context(), &lofamov1.ListTokensRequest{})
	if err != nil || !slices.ContainsFunc(list.GetTokens(), func(t *lofamov1.JoinToken) bool {
		return slices.Equal(t.GetNames(), []string{"gpu-*", "n[0-9]?"})
	}) {
		t.Errorf("tokens: %v, %v: want one with its patterns", list, err)
	}
	for _, bad := range [][]string{{"gpu-["}, {""}, {"a/*"}, {"ä*"}, {`\*`}, {strings.Repeat("a", 65)}, make([]string, 17)} {
		_, err := h.operator.CreateToken(t.Context(), &lofamov1.CreateTokenRequest{Names: bad})
		wantCode(t, strings.Join(bad, ","), err, codes.InvalidArgument, "names")
	}
	_, err = h.operator.CreateToken(t.Context(), &lofamov1.CreateTokenRequest{Node: "n1", Names: []string{"n*"}})
	wantCode(t, "patterns beside a name", err, codes.InvalidArgument, "none for a named node")
}

// A forgotten node's certificates are refused, also after the name has come back, which takes a token that names the node.
func TestForgottenNodeIsRevoked(t *testing.T) {
	t.Parallel()
	h := newTokenHall(t)
	dir, many := t.TempDir(), h.token(&lofamov1.CreateTokenRequest{Uses: 9}).GetToken()
	resp, err := h.ask(dir, "e1", many, nil)
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
	old, err := pki.PresentedPair(cert, file)
	if err != nil {
		t.Fatal(err)
	}
	leave := func(args ...string) (int, string, string) {
		return h.lofamoctl(pki.RoleOperator, append([]string{"node", "leave", "e1"}, args...)...)
	}
	if code, _, why := leave("--revoke"); code != command.ExitUsage || !strings.Contains(why, "--forget") {
		t.Errorf("a revoked spare: %d, %s: want that it needs --forget", code, why)
	}
	if code, _, why := leave("--forget", "--dry-run"); code != 0 || len(h.list().GetDenials()) != 0 {
		t.Errorf("a dry run: %d, %s, and it has revoked %v", code, why, h.list())
	}
	if code, out, why := leave("--forget"); code != 0 || !strings.Contains(out, "node/e1/host is revoked") {
		t.Fatalf("leave --forget: %d, %s, %s", code, out, why)
	}
	refused := func(when string) {
		t.Helper()
		_, err := h.ask(dir, "e1", many, old)
		wantCode(t, when, err, codes.PermissionDenied, "certificate was revoked")
	}
	refused("the forgotten node's certificate")
	wantCode(t, "a token for any name", h.enrol(t.TempDir(), "e1", many), codes.PermissionDenied, "token create --node e1")
	if err := h.enrol(t.TempDir(), "e1", h.token(&lofamov1.CreateTokenRequest{Node: "e1"}).GetToken()); err != nil {
		t.Error(err)
	}
	refused("its certificate after another machine got the name")
	before := len(h.list().GetDenials())
	if code, _, why := leave("--forget", "--revoke=false"); code != 0 || len(h.list().GetDenials()) != before {
		t.Errorf("with --revoke=false: %d, %s, and it has revoked %v", code, why, h.list())
	}
}
