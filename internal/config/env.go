package config

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
)

// The environment overrides the file by LOFAMO_AGENT_NAME and LOFAMO_SUPERVISOR_NAME, where NAME is the field's path in
// the file in upper case, with underscores for dots: LOFAMO_AGENT_STATEDIR, LOFAMO_AGENT_SERVICE_LISTEN,
// LOFAMO_SUPERVISOR_TLS_CERT. Commas separate list elements. Only the fields in the tables below can be set this way;
// any other variable with these prefixes is an error, except those that Kubernetes sets for a service called
// lofamo-agent or lofamo-supervisor.

type setters map[string]func(value string) error

func agentEnv(a *Agent) setters {
	return setters{
		"CLUSTER":               str(&a.Cluster),
		"NODE":                  str(&a.Node),
		"COORD":                 str(&a.Coord),
		"DIMS":                  str(&a.Dims),
		"STATEDIR":              str(&a.StateDir),
		"PLATFORM":              str(&a.Platform),
		"PRESET":                str(&a.Preset),
		"TLS_CA":                str(&a.TLS.CA),
		"TLS_HOSTCERT":          str(&a.TLS.HostCert),
		"TLS_HOSTKEY":           str(&a.TLS.HostKey),
		"TLS_DNPCERT":           str(&a.TLS.DNPCert),
		"TLS_DNPKEY":            str(&a.TLS.DNPKey),
		"MTU":                   number(&a.MTU),
		"MAXHOPS":               number(&a.MaxHops),
		"ROUTING":               str(&a.Routing),
		"SERVICE_LISTEN":        str(&a.Service.Listen),
		"SERVICE_GOSSIPLISTEN":  str(&a.Service.GossipListen),
		"SERVICE_GOSSIPJOIN":    list(&a.Service.GossipJoin),
		"SERVICE_GOSSIPKEYFILE": str(&a.Service.GossipKeyFile),
		"SERVICE_INTERFACE":     str(&a.Service.Interface),
		"SERVICE_SPOOLBYTES":    number(&a.Service.SpoolBytes),
		"SERVICE_CHECKSUMS":     list(&a.Service.Checksums),
		"SENSORS_PROCFS":        str(&a.Sensors.Procfs),
		"SENSORS_SYSFS":         str(&a.Sensors.Sysfs),
		"RECOVERY_RESTARTS":     number(&a.Recovery.Restarts),
		"JOBS_SOCKET":           str(&a.Jobs.Socket),
		"JOBS_MODE":             str(&a.Jobs.Mode),
		"JOBS_GROUP":            str(&a.Jobs.Group),
		"JOBS_WATCH":            list(&a.Jobs.Watch),
		"JOBS_RAISE":            list(&a.Jobs.Raise),
		"JOBS_BARRIER":          list(&a.Jobs.Barrier),
		"JOIN_SUPERVISORS":      list(&a.Join.Supervisors),
		"JOIN_TOKENFILE":        str(&a.Join.TokenFile),
		"JOIN_ADDRESS":          str(&a.Join.Address),
		"HTTP":                  str(&a.HTTP),
		"LOG_LEVEL":             str(&a.Log.Level),
		"LOG_FORMAT":            str(&a.Log.Format),
	}
}

func supervisorEnv(s *Supervisor) setters {
	return setters{
		"CLUSTER":             str(&s.Cluster),
		"ID":                  str(&s.ID),
		"DIMS":                str(&s.Dims),
		"REPORT":              str(&s.Report),
		"REPORTALTERNATES":    list(&s.ReportAlternates),
		"CHECKSUMS":           list(&s.Checksums),
		"GRPC":                str(&s.GRPC),
		"HTTP":                str(&s.HTTP),
		"GOSSIPLISTEN":        str(&s.GossipListen),
		"GOSSIPJOIN":          list(&s.GossipJoin),
		"GOSSIPKEYFILE":       str(&s.GossipKeyFile),
		"DATADIR":             str(&s.DataDir),
		"ETCD_ENDPOINTS":      list(&s.Etcd.Endpoints),
		"ETCD_NAME":           str(&s.Etcd.Name),
		"ETCD_PEERURL":        str(&s.Etcd.PeerURL),
		"ETCD_CLIENTURL":      str(&s.Etcd.ClientURL),
		"ETCD_INITIALCLUSTER": str(&s.Etcd.InitialCluster),
		"ETCD_CLUSTERSTATE":   str(&s.Etcd.ClusterState),
		"TLS_CA":              str(&s.TLS.CA),
		"TLS_CERT":            str(&s.TLS.Cert),
		"TLS_KEY":             str(&s.TLS.Key),
		"ECDSA_CERT":          str(&s.ECDSA.Cert),
		"ECDSA_KEY":           str(&s.ECDSA.Key),
		"ENROLMENT_LISTEN":    str(&s.Enrolment.Listen),
		"RENEWAL_CERT":        str(&s.Renewal.Cert),
		"RENEWAL_KEY":         str(&s.Renewal.Key),
		"PRESET":              str(&s.Preset),
		"LOG_LEVEL":           str(&s.Log.Level),
		"LOG_FORMAT":          str(&s.Log.Format),
	}
}

func str[S ~string](p *S) func(string) error {
	return func(v string) error { *p = S(v); return nil }
}

func number[N int | int64](p *N) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("given %q: want a whole number", v)
		}
		*p = N(n)
		return nil
	}
}

func list(p *[]string) func(string) error {
	return func(v string) error {
		*p = nil
		for e := range strings.SplitSeq(v, ",") {
			if e = strings.TrimSpace(e); e != "" {
				*p = append(*p, e)
			}
		}
		return nil
	}
}

// kubernetesService matches the rest of the names of variables that Kubernetes sets for a service named after the agent
// or the supervisor.
var kubernetesService = lazily(`^(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)$`)

func applyEnv(prefix string, environ []string, table setters) error {
	var errs []error
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		set, known := table[rest]
		switch {
		case known:
			if err := set(value); err != nil {
				errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
			}
		case !kubernetesService().MatchString(rest):
			errs = append(errs, fmt.Errorf("environment %s: unknown: want %s and one of %s", name, prefix, strings.Join(sortedKeys(table), ", ")))
		}
	}
	return errors.Join(errs...)
}

// AgentEnv lists the variables that override an agent's file, for help texts.
func AgentEnv() []string { return envNames("LOFAMO_AGENT_", agentEnv(&Agent{})) }

// SupervisorEnv lists the variables that override a supervisor's file, for help texts.
func SupervisorEnv() []string { return envNames("LOFAMO_SUPERVISOR_", supervisorEnv(&Supervisor{})) }

func envNames(prefix string, table setters) []string {
	out := sortedKeys(table)
	for i, name := range out {
		out[i] = prefix + name
	}
	return out
}

// complete fills in defaults that depend on other fields.
func (a *Agent) complete() {
	if a.Node != "" {
		return
	}
	if c, _, err := a.Topology(); err == nil {
		a.Node = fault.DefaultNodeID(c)
	}
}

func (s *Supervisor) complete() {
	s.Etcd.Name = cmp.Or(s.Etcd.Name, s.ID)
	for i := range s.Nodes {
		if s.Nodes[i].ID == "" {
			s.Nodes[i].ID = s.Nodes[i].NodeID()
		}
	}
}
