package supervisor_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/ctl"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// office is lofamoctl in the hands of people, at one replica.
type office struct {
	*testing.T
	*supervisortest.Cluster
	cfg config.Supervisor
}

// lofamoctl runs a command with a role's certificate.
func (o office) lofamoctl(role pki.Role, args ...string) (code int, stdout, stderr string) {
	o.Helper()
	return o.lofamoctlAt(time.Now, role, args...)
}

// lofamoctlAt is lofamoctl on a machine with another clock.
func (o office) lofamoctlAt(clock func() time.Time, role pki.Role, args ...string) (code int, stdout, stderr string) {
	o.Helper()
	var out, errOut bytes.Buffer
	base := filepath.Join(o.Dir, string(role))
	code = ctl.Run(o.Context(), append(args, "--server", o.cfg.GRPC, "--ca", filepath.Join(o.Dir, "ca.pem"), "--cert", base+".pem", "--key",
		base+".key"), command.Env{Stdout: &out, Stderr: &errOut, Getenv: func(string) string { return "" }, Now: clock, Location: time.UTC})
	return code, out.String(), errOut.String()
}

// list returns the list in force.
func (o office) list() *lofamov1.DenyList {
	o.Helper()
	resp, err := lofamov1.NewCertificatesClient(o.Conn(o.T, pki.RoleOperator, o.cfg.GRPC)).ListCertificates(o.Context(),
		&lofamov1.ListCertificatesRequest{})
	if err != nil {
		o.Fatal(err)
	}
	return resp.GetList()
}

// kept writes a list as a node keeps it: these denials, and new ones of identities.
func (o office) kept(version uint64, denials []*lofamov1.Denial, ids ...pki.Identity) string {
	o.Helper()
	op, err := pki.LoadSigner(filepath.Join(o.Dir, "operator.pem"), filepath.Join(o.Dir, "operator.key"))
	if err != nil {
		o.Fatal(err)
	}
	l := &lofamov1.DenyList{Cluster: supervisortest.Name, Version: version, Issued: timestamppb.Now(), Denials: denials}
	for _, id := range ids {
		l.Denials = append(l.Denials, &lofamov1.Denial{Role: string(id.Role), Name: id.Name, Before: timestamppb.New(pki.CutOff(time.Now())),
			Revoked: timestamppb.Now(), By: "operator/someone", Reason: "stolen"})
	}
	signed, err := pki.SignDenyList(l, op)
	if err != nil {
		o.Fatal(err)
	}
	raw, err := proto.Marshal(signed)
	if err != nil {
		o.Fatal(err)
	}
	file := filepath.Join(o.TempDir(), pki.DenyListFile)
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		o.Fatal(err)
	}
	return file
}

// claims has a node's host half claim a version of the list, until the replica has heard it.
func (o office) claims(node fault.NodeID, version uint64) {
	o.Helper()
	s, err := pki.LoadSigner(filepath.Join(o.Dir, string(node)+"-host.pem"), filepath.Join(o.Dir, string(node)+"-host.key"))
	if err != nil {
		o.Fatal(err)
	}
	certificates := lofamov1.NewCertificatesClient(o.Conn(o.T, pki.RoleOperator, o.cfg.GRPC))
	for seq := fault.Seq(1); ; seq++ {
		id := fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: fault.Epoch(version), Seq: seq}
		b, err := servicenet.SealReports([]fault.Report{{ID: id, Digest: true, Uptime: time.Minute}},
			&lofamov1.DeliveryStatus{State: lofamov1.PathState_MIGRATED, Primary: "eth0>s1", Denied: version}, s, servicenet.SealOptions{})
		if err != nil {
			o.Fatal(err)
		}
		o.Agents[node].Send(o.T, o.cfg.Report, b)
		resp, err := certificates.ListCertificates(o.Context(), &lofamov1.ListCertificatesRequest{})
		if err == nil && resp.GetNextVersion() > version {
			return
		}
		if seq > 1000 {
			o.Fatalf("claim of version %d: not heard: next version %d, %v", version, resp.GetNextVersion(), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func halvesOf(node fault.NodeID) []pki.Identity {
	return []pki.Identity{pki.NodeIdentity(supervisortest.Name, node, fault.HalfHost),
		pki.NodeIdentity(supervisortest.Name, node, fault.HalfDNP)}
}

// TestLostRevocationsComeBackFromANodesFile: the supervisors have a list from before the revocation of n1-1-0, as after a restore of
// their store. An operator gives them the list that a node has kept.
func TestLostRevocationsComeBackFromANodesFile(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	o := office{t, c, c.Configs[0]}
	start(t, o.cfg)
	c.AwaitLeader(t)
	revoke(t, c, append(halvesOf("n1-0-0"), pki.Identity{Cluster: supervisortest.Name, Role: pki.RoleViewer, Name: "vic"})...)
	file := o.kept(5, o.list().GetDenials()[:2], halvesOf("n1-1-0")...)
	o.claims("n0-0-0", 5)
	if _, _, warned := o.lofamoctl(pki.RoleOperator, "cert", "list"); !strings.Contains(warned, "cert restore FILE") {
		t.Errorf("cert list while a node has a newer list: %q: want a warning that names the command", warned)
	}
	if code, _, why := o.lofamoctl(pki.RoleViewer, "cert", "restore", file); code == 0 || !strings.Contains(why, "operator") {
		t.Errorf("a viewer restores: exit code %d, %s", code, why)
	}
	if code, _, why := o.lofamoctl(pki.RoleOperator, "cert", "restore", o.kept(3, nil)); code == 0 ||
		!strings.Contains(why, "a node has version 5") {
		t.Errorf("a list that is older than a node's: exit code %d, %s", code, why)
	}
	code, out, warned := o.lofamoctl(pki.RoleOperator, "cert", "restore", file)
	if code != 0 || out != "node/n1-1-0/host is revoked again\nnode/n1-1-0/dnp is revoked again\n" ||
		!strings.Contains(warned, "lofamoctl cert unrevoke viewer/vic") {
		t.Fatalf("cert restore: exit code %d, %s%s", code, out, warned)
	}
	if l := o.list(); l.GetVersion() != 6 || len(l.GetDenials()) != 5 {
		t.Errorf("list %v: want version 6 with the denials of both lists", l)
	}
	was := sample(t, o.cfg.HTTP, `lofamo_refused_total{class="revoked"}`)
	_, b := c.Agents["n1-1-0"].Report(t, fault.HalfHost, true)
	c.Agents["n1-1-0"].Send(t, o.cfg.Report, b)
	for end := time.Now().Add(supervisortest.Wait); sample(t, o.cfg.HTTP, `lofamo_refused_total{class="revoked"}`) == was; {
		if time.Now().After(end) {
			t.Fatal("a report with the revoked certificate is accepted after the restore")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if code, _, why := o.lofamoctl(pki.RoleOperator, "cert", "restore", file); code == 0 ||
		!strings.Contains(why, "older than the supervisors' list") {
		t.Errorf("the same file again: exit code %d, %s", code, why)
	}
}

// TestRevocationCoversCertificatesDespiteSlowClock: the operator's clock is behind the supervisors'. A revocation still refuses
// certificates that are seconds old. If the clock is more than an hour behind, the command fails and names both clocks.
func TestRevocationCoversCertificatesDespiteSlowClock(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	o := office{t, c, c.Configs[0]}
	start(t, o.cfg)
	c.AwaitLeader(t)
	behind := func(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(-d) } }
	code, _, why := o.lofamoctlAt(behind(61*time.Minute), pki.RoleOperator, "cert", "revoke", "node/n1-0-0", "--reason", "test")
	if code == 0 || !strings.Contains(why, "this machine's clock says ") || !strings.Contains(why, "nothing was changed") ||
		len(o.list().GetDenials()) > 0 {
		t.Errorf("61 minutes behind: exit code %d, %s: want an error that names the clocks, and no revocation", code, why)
	}
	if code, _, why := o.lofamoctlAt(behind(6*time.Minute), pki.RoleOperator, "cert", "revoke", "node/n1-0-0", "--reason", "test"); code != 0 {
		t.Fatalf("6 minutes behind: exit code %d, %s", code, why)
	}
	r := pki.NewRegistry()
	r.Set(pki.DenyList{DenyList: o.list()}.Denials())
	for _, half := range []string{"host", "dnp"} {
		s, err := pki.LoadSigner(filepath.Join(o.Dir, "n1-0-0-"+half+".pem"), filepath.Join(o.Dir, "n1-0-0-"+half+".key"))
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(s.Cert())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.CheckCertificate(cert); !errors.Is(err, pki.ErrRevoked) {
			t.Errorf("certificate of the %s half: %v: want it revoked", half, err)
		}
	}
	code, _, warned := o.lofamoctlAt(behind(-6*time.Minute), pki.RoleOperator, "cert", "revoke", "viewer/vic", "--reason", "test")
	if code != 0 || !strings.Contains(warned, "the revocation also refuses certificates that a supervisor issues before") {
		t.Errorf("6 minutes ahead: exit code %d, %s: want a warning", code, warned)
	}
}

// TestListOfFormerAuthorityIsWarnedOf: the operator's ca.pem has the next authority, and the operator's certificate is of the former one.
func TestListOfFormerAuthorityIsWarnedOf(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	o := office{t, c, c.Configs[0]}
	start(t, o.cfg)
	c.AwaitLeader(t)
	const warning = "the list of revocations was signed under an earlier authority"
	revoke := func(name string) string {
		t.Helper()
		code, _, why := o.lofamoctl(pki.RoleOperator, "cert", "revoke", name, "--reason", "test")
		if code != 0 {
			t.Fatalf("cert revoke %s: exit code %d, %s", name, code, why)
		}
		return why
	}
	if why := revoke("viewer/vic"); strings.Contains(why, warning) {
		t.Errorf("with one authority: %s", why)
	}
	ca, err := pki.LoadCA(filepath.Join(o.Dir, "ca.pem"), filepath.Join(o.Dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := ca.Next(pki.KeyECDSA)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "ca.pem"), slices.Concat(ca.CertPEM(), next.CertPEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	if why := revoke("viewer/val"); !strings.Contains(why, warning) || !strings.Contains(why, "lofamoctl cert revoke viewer/none") {
		t.Errorf("cert revoke: %s: want a warning, and the command that signs again", why)
	}
	if _, _, why := o.lofamoctl(pki.RoleViewer, "cert", "list"); !strings.Contains(why, warning) {
		t.Errorf("cert list: %s: want a warning", why)
	}
}

// TestLyingNodeDoesNotBlockRestore: a node claims a list that does not exist.
func TestLyingNodeDoesNotBlockRestore(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	o := office{t, c, c.Configs[0]}
	start(t, o.cfg)
	c.AwaitLeader(t)
	const lie = pki.MaxVersionJump - 1
	o.claims("n0-0-0", lie)
	file := o.kept(5, nil, halvesOf("n1-1-0")...)
	if code, _, why := o.lofamoctl(pki.RoleOperator, "cert", "restore", file); code == 0 || !strings.Contains(why, "--accept-older") {
		t.Errorf("cert restore while a node claims a newer list: exit code %d, %s: want an error that names the flag", code, why)
	}
	if code, out, why := o.lofamoctl(pki.RoleOperator, "cert", "restore", file, "--accept-older"); code != 0 {
		t.Errorf("cert restore --accept-older: exit code %d, %s%s", code, out, why)
	}
	if l := o.list(); l.GetVersion() != lie+1 || len(l.GetDenials()) != 2 {
		t.Errorf("list %v: want version %d with both halves", l, uint64(lie+1))
	}
	for what, list := range map[string]string{
		"higher than any": o.kept(1<<64-1, nil, halvesOf("n1-1-0")...),
		"beyond the jump": o.kept(lie+2+pki.MaxVersionJump, nil, halvesOf("n1-1-0")...),
	} {
		if code, _, why := o.lofamoctl(pki.RoleOperator, "cert", "restore", list); code == 0 || !strings.Contains(why, "version: given ") {
			t.Errorf("a version %s: exit code %d, %s", what, code, why)
		}
	}
}
