package charttest

import (
	"slices"
	"strings"
	"testing"
)

// pods returns the pod spec of an object.
func pods(t *testing.T, o object) object {
	t.Helper()
	spec, ok := o.at("spec", "template", "spec").(map[string]any)
	if !ok {
		t.Fatalf("%s: has no pods", o)
	}
	return spec
}

// TestSupervisorProbesUseNodeAddress: by default a kubelet probes at its node's address. The init step gets that address and refuses a
// supervisor that does not listen there.
func TestSupervisorProbesUseNodeAddress(t *testing.T) {
	t.Parallel()
	spec := pods(t, find(t, render(t, given(t, matrix["defaults"]...)...), "StatefulSet", "lofamo-supervisor"))
	place := list(spec, "initContainers")[0]
	if args := strings.Join(words(place.at("args")), " "); !strings.Contains(args, "--address $(HOST_IP)") {
		t.Errorf("place is run as %q: want its node's address", args)
	}
	if env := list(place, "env"); !slices.ContainsFunc(env, func(e object) bool {
		return e.text("name") == "HOST_IP" && e.text("valueFrom", "fieldRef", "fieldPath") == "status.hostIP"
	}) {
		t.Errorf("place has the variables %v: want HOST_IP, the node's address", env)
	}
}

// TestExecutorProbesUseListenAddress: probes and scrapes use the executor process's listen address. It runs on the node with that
// address even if the volume does not require it, and it gets its configured time to stop.
func TestExecutorProbesUseListenAddress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		address, host, scraped, stop string
		grace                        float64 // s: at least stopTimeout and 30
	}{
		{"10.0.0.101:7950", "10.0.0.101", "10.0.0.101:7951", "", 60},
		{"10.0.0.101:7950", "10.0.0.101", "10.0.0.101:7951", "1m30s", 150},
		{"[2001:db8::1]:7950", "2001:db8::1", "[2001:db8::1]:7951", "1h", 3690},
	} {
		values := given(t, "executor.enabled=true", "executor.node=control-1", "executor.persistence.create=false",
			"monitoring.podMonitor.enabled=true", "executor.config.stopTimeout="+tc.stop)
		all := render(t, append(values, "--set-string", "executor.address="+tc.address)...)
		spec := pods(t, find(t, all, "Deployment", "lofamo-executor"))
		c := list(spec, "containers")[0]
		for _, kind := range []string{"livenessProbe", "readinessProbe"} {
			if got := c.text(kind, "httpGet", "host"); got != tc.host {
				t.Errorf("%s: %s asks at %q: want %q", tc.address, kind, got, tc.host)
			}
		}
		if got := spec.text("nodeSelector", "kubernetes.io/hostname"); got != "control-1" {
			t.Errorf("%s: on a node %q: want control-1", tc.address, got)
		}
		if got := spec.at("terminationGracePeriodSeconds"); got != tc.grace {
			t.Errorf("stopTimeout %q: it is ended after %v s: want %v", tc.stop, got, tc.grace)
		}
		scraped := ""
		monitor := find(t, all, "PodMonitor", "lofamo-executor")
		for _, r := range list(list(object(monitor.at("spec").(map[string]any)), "podMetricsEndpoints")[0], "relabelings") {
			if r.text("targetLabel") == "__address__" {
				scraped = r.text("replacement")
			}
		}
		if scraped != tc.scraped {
			t.Errorf("%s: scraped at %q: want %q", tc.address, scraped, tc.scraped)
		}
	}
}

// TestChangedJobGetsAnotherName: any change of the Job's pod gives the Job another name, because Jobs are immutable.
func TestChangedJobGetsAnotherName(t *testing.T) {
	t.Parallel()
	named := map[string]string{}
	for _, value := range []string{"", "executor.secret=other", "executor.passwords=bmc", "executor.resources.limits.memory=1Gi",
		"executor.priorityClassName=mine", "executor.tolerations=null", "executor.podAnnotations.a=b",
		"executor.config.stopTimeout=2m", "images.pullPolicy=Always", "images.pullSecrets[0]=pull", "images.tag=v2", "executor.node=control-2"} {
		values := []string{"executor.enabled=true", "executor.init=true", "executor.address=10.0.0.101:7950", "executor.node=control-1"}
		if value != "" { // the first one has defaults only
			values = append(values, value)
		}
		for _, o := range render(t, given(t, values...)...) {
			if o.text("kind") != "Job" {
				continue
			}
			name := o.text("metadata", "name")
			if other, ok := named[name]; ok {
				t.Errorf("with %q and with %q the Job is %s", value, other, name)
			}
			named[name] = value
		}
	}
	if len(named) != 12 {
		t.Errorf("Jobs: %v: want 12", named)
	}
}

// TestOnlySupervisorsMayCallExecutor: only the supervisors may call the executor process, in networks that enforce policies.
func TestOnlySupervisorsMayCallExecutor(t *testing.T) {
	t.Parallel()
	policy := find(t, render(t, given(t, matrix["executor"]...)...), "NetworkPolicy", "lofamo-executor")
	var callers []string
	for _, rule := range list(object(policy.at("spec").(map[string]any)), "ingress") {
		if list(rule, "ports")[0].at("port") == 7950.0 {
			for _, from := range list(rule, "from") {
				callers = append(callers, from.text("ipBlock", "cidr"))
			}
		}
	}
	if want := []string{"10.0.0.101/32", "10.0.0.102/32", "10.0.0.103/32"}; !slices.Equal(callers, want) {
		t.Errorf("attempts are taken from %q: want %q", callers, want)
	}
}

// TestHostDirectoriesHaveRightType: the kubelet creates host directories for root. It must not create one that another user writes to:
// the half could not bind its socket there, and would only log a warning.
func TestHostDirectoriesHaveRightType(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"managed": "Directory", "everything": "DirectoryOrCreate"} {
		agents := find(t, render(t, given(t, append(slices.Clone(matrix[name]),
			"agents.config.jobs.socket=/run/lofamo-jobs/local.sock")...)...), "DaemonSet", "lofamo-agent")
		got := ""
		for _, v := range list(pods(t, agents), "volumes") {
			if v.text("name") == "jobs" {
				got = v.text("hostPath", "type")
			}
		}
		if got != want {
			t.Errorf("%s: the socket's directory is of type %q: want %q", name, got, want)
		}
	}
	spec := pods(t, find(t, render(t, given(t, matrix["executor"]...)...), "DaemonSet", "lofamo-agent"))
	if got := spec.text("securityContext", "seLinuxOptions", "type"); got != "spc_t" {
		t.Errorf("seLinuxOptions.type spc_t: pods have %q", got)
	}
}
