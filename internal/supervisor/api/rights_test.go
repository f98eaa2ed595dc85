package api

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
)

// TestRightsAreDocumented: the table of docs/security.md lists for every call the roles that may make it.
func TestRightsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| service | calls | roles |\n|---|---|---|\n")
	for _, s := range []grpc.ServiceDesc{
		lofamov1.FaultSupervisor_ServiceDesc, lofamov1.Manage_ServiceDesc, lofamov1.ResponseService_ServiceDesc,
		lofamov1.SupervisorAdmin_ServiceDesc, lofamov1.Reconfigure_ServiceDesc, lofamov1.Certificates_ServiceDesc, lofamov1.Enrolment_ServiceDesc,
		lofamov1.Replica_ServiceDesc, lofamov1.Upstream_ServiceDesc,
	} {
		want.WriteString(rightsOf(t, s))
	}
	if !strings.Contains(string(text), want.String()) {
		t.Errorf("docs/security.md has another table than the code; want\n%s", want.String())
	}
	for _, method := range []string{"/lofamo.v1.Nothing/At", "/lofamo.v1.ResponseService/Later", "", "ListNodes"} {
		if r := rights(method); r != nil {
			t.Errorf("%q: %v may call what nobody has named", method, r)
		}
	}
}

// rightsOf returns a row for each set of roles that may call some method of the service.
func rightsOf(t *testing.T, s grpc.ServiceDesc) string {
	t.Helper()
	calls := map[string][]string{}
	var order []string
	add := func(name string) {
		method := "/" + s.ServiceName + "/" + name
		roles := rights(method)
		if enrols := method == lofamov1.Enrolment_Enrol_FullMethodName; enrols != (len(roles) == 0) ||
			slices.Contains(roles, pki.RoleNode) || slices.Contains(roles, pki.RoleExecutor) {
			t.Errorf("%s.%s: %v may call it", s.ServiceName, name, roles)
		}
		var names []string
		for _, r := range pki.Roles() {
			if slices.Contains(roles, r) {
				names = append(names, r.String())
			}
		}
		key := cmp.Or(strings.Join(names, ", "), "none: machines without a certificate call it, at the enrolment address")
		if calls[key] == nil {
			order = append(order, key)
		}
		calls[key] = append(calls[key], name)
	}
	for _, m := range s.Methods {
		add(m.MethodName)
	}
	for _, m := range s.Streams {
		add(m.StreamName)
	}
	var b strings.Builder
	name := strings.TrimPrefix(s.ServiceName, "lofamo.v1.")
	for _, key := range order {
		b.WriteString("| [" + name + "](api.md#" + strings.ToLower(name) + ") | " + strings.Join(calls[key], ", ") + " | " + key + " |\n")
	}
	return b.String()
}
