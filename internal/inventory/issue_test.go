package inventory

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/pki"
)

// Persons and executor processes get their own certificates, and a change of keys, also of the authority, renews them
// with all others.
func TestPersonsGetRenewedCertificates(t *testing.T) {
	d, _ := made(t)
	want := map[string]pki.Identity{
		d.file("operators", "approver-anna.pem"):            {Cluster: "hall7", Role: pki.RoleApprover, Name: "anna"},
		d.file("operators", "operator-max@example.org.pem"): {Cluster: "hall7", Role: pki.RoleOperator, Name: "max@example.org"},
		d.file("executors", "x1", "pki", "executor.pem"):    {Cluster: "hall7", Role: pki.RoleExecutor, Name: "x1"},
		d.file("operators", "approver-anna-maria.pem"):      {Cluster: "hall7", Role: pki.RoleApprover, Name: "anna-maria"},
	}
	for file, id := range want {
		if got, err := d.Issue(id.Role, id.Name); err != nil || got != file {
			t.Fatalf("%s: %s, %v: want %s", id, got, err, file)
		}
	}
	check := func(when string) (certs []string) {
		t.Helper()
		word := []byte("approved")
		for _, file := range slices.Sorted(maps.Keys(want)) {
			s, err := pki.LoadSigner(file, strings.TrimSuffix(file, ".pem")+".key")
			if err != nil || s.Identity() != want[file] {
				t.Fatalf("%s: %s: %v", when, file, err)
			}
			v, err := pki.LoadVerifier(filepath.Join(filepath.Dir(file), "ca.pem"), "hall7")
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := v.VerifyStatement("test", s.Cert(), word, s.SignStatement("test", word)); err != nil {
				t.Errorf("%s: %s: %v", when, file, err)
			}
			certs = append(certs, string(read(t, file)))
		}
		return certs
	}
	before := check("issued")
	for _, step := range []Step{StepAdd, StepUse, StepRemove} {
		changed, err := d.Rotate(step, step == StepAdd)
		if err != nil || !slices.Contains(changed, "executors/x1") {
			t.Fatalf("%s: %v, %v: want executors/x1 among them", step, changed, err)
		}
		check(string(step))
	}
	for i, c := range check("at the end") {
		if c == before[i] {
			t.Errorf("certificate %d is as before", i)
		}
	}
	for _, tc := range []struct {
		role        pki.Role
		name, names string
	}{
		{pki.RoleApprover, "anna", "exists already"},
		{pki.RoleApprover, "approver", "exists already"},
		{pki.RoleExecutor, "x1", "exists already"},
		{pki.RoleNode, "n0-0-0/host", `role: given "node": want viewer, operator, approver or executor`},
		{"root", "anna", `role: given "root"`},
		{pki.RoleViewer, "../anna", "anna"},
	} {
		if _, err := d.Issue(tc.role, tc.name); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%s %s: %v: want %q", tc.role, tc.name, err, tc.names)
		}
	}
}
