package get

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

// statusPause is the time between two requests of `lofamoctl status -w`.
const statusPause = 2 * time.Second

// clusterStatus is the content of `lofamoctl status`: the answers of several calls, one after the other.
type clusterStatus struct {
	at          time.Time
	incidents   []*lofamov1.Incident // OPEN and RECOVERING, the worst first
	responses   []*lofamov1.Response // open ones
	breaker     *lofamov1.ResponseBreaker
	supervisors []*lofamov1.Supervisor
	summary     *lofamov1.GetSummaryResponse
	missing     []string // parts that the supervisors do not serve, with the reasons
	local       bool     // the cluster runs on this machine: --region names its regions
}

// StatusCommand returns `lofamoctl status`.
func StatusCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "One screen: open incidents, since when, why, responses under way, next commands",
		Long: `Prints the incidents that are open or recovering, the worst first, each with its start, its cause in plain words, the
number of its consequences, the responses under way, and the next commands. Below them are the circuit breaker, the
supervisors and the counts of nodes and link ends. The first line says whether anything is broken. It counts the UNKNOWN
nodes too: no evidence says that they work. Nodes that announced a clean stop count as stopped, not as UNKNOWN.

-o json and yaml print {"time", "incidents", "responses", "breaker", "supervisors", "nodes", "links", "groups",
"warnings", "maintenance", "stopped", "lostPaths", "singleWitness", "cluster"}, whose values are the API's own messages and
numbers. "missing" names the parts that these supervisors do not serve, and regions that do not answer.
-w prints all again when something changes, until Ctrl-C; changes of measurements alone do not count. If no supervisor
answers for 1.5 s, it says on standard error since when it is blind, and later that it sees again.

Exit codes: 0 if the supervisors answer, even with open incidents. With --check: 0 nothing is broken, 1 something is broken or
unknown, or no supervisor answers. It is unknown if a part is missing. 2 a usage error.`,
		Example: "  lofamoctl status\n  lofamoctl status --check > /dev/null || echo not well\n" +
			"  lofamoctl status -w\n  lofamoctl status -o jsonpath='{.incidents[*].id}'",
		Args: command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.Flags().BoolVarP(&o.Watch, "watch", "w", false, "print all again when something changes, until Ctrl-C")
	var check bool
	cmd.Flags().BoolVar(&check, "check", false, "exit code 1 unless the answer says that nothing is broken")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if check && o.Watch {
			return command.Usagef("--check and --watch: want only one")
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			if o.Watch {
				return watchStatus(a, ctx, s, o.Format)
			}
			st, err := askStatus(a, ctx, s)
			if err != nil {
				return err
			}
			if err := st.print(a, o.Format); err != nil {
				return err
			}
			if broken := st.broken(); check && len(broken)+len(st.missing) > 0 {
				return fmt.Errorf("status: not well: %s", strings.Join(append(broken, st.missing...), "; "))
			}
			return nil
		})
	}
	return cmd
}

// askStatus asks the supervisors for all parts.
func askStatus(a *command.App, ctx context.Context, s command.Session) (*clusterStatus, error) {
	st := &clusterStatus{at: a.Env.Now(), local: s.Cluster != nil}
	var err error
	if st.summary, err = s.GetSummary(ctx, &lofamov1.GetSummaryRequest{}); err != nil {
		return nil, fmt.Errorf("status: %w", command.Plain(err))
	}
	supervisors, err := s.ListSupervisors(ctx)
	if err != nil {
		return nil, fmt.Errorf("status: supervisors: %w", command.Plain(err))
	}
	st.supervisors = supervisors.GetSupervisors()
	incidents, err := s.AllIncidents(ctx, &lofamov1.ListIncidentsRequest{States: []lofamov1.IncidentState{
		lofamov1.IncidentState_OPEN, lofamov1.IncidentState_RECOVERING,
	}}, incidentChunk)
	if err := st.without("incidents", err); err != nil {
		return nil, err
	}
	st.incidents = incidents.GetIncidents()
	for _, region := range incidents.GetMissingRegions() {
		st.missing = append(st.missing, "incidents of region "+region+": none of its supervisors answers")
	}
	worstFirst(st.incidents)
	responses, err := s.ListResponses(ctx, &lofamov1.ListResponsesRequest{})
	if err := st.without("responses", err); err != nil {
		return nil, err
	}
	st.responses, st.breaker = responses.GetResponses(), responses.GetBreaker()
	return st, nil
}

// without returns the error of a call, or nil if the supervisors do not serve this part.
func (st *clusterStatus) without(part string, err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unimplemented, codes.FailedPrecondition:
		var refusal interface{ GRPCStatus() *status.Status }
		if errors.As(err, &refusal) {
			err = errors.New(refusal.GRPCStatus().Message()) // without the addresses that were tried
		}
		st.missing = append(st.missing, part+": "+err.Error())
		return nil
	default:
		return fmt.Errorf("status: %s: %w", part, command.Plain(err))
	}
}

// watchStatus prints the status, and again whenever something in it changes. While no supervisor answers it waits.
func watchStatus(a *command.App, ctx context.Context, s command.Session, f command.Format) error {
	defer a.Attend(ctx, s)()
	last, between := "", command.Documents{Format: f, Long: true}
	for {
		st, err := askStatus(a, ctx, s)
		switch {
		case ctx.Err() != nil && last != "":
			return nil
		case err != nil && (last == "" || !command.Unanswered(err)):
			return err
		case err == nil && st.digest() != last:
			if err := st.printAgain(a, f, &between); err != nil {
				return err
			}
			last = st.digest()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(statusPause):
		}
	}
}

// printAgain prints one of several versions: JSON as one line each, YAML as one document each.
func (st *clusterStatus) printAgain(a *command.App, f command.Format, between *command.Documents) error {
	between.Next(a)
	if f == command.FormatJSON {
		b, err := st.json()
		if err == nil {
			a.Printf("%s\n", b)
		}
		return err
	}
	return st.print(a, f)
}

// digest returns the content without measurements, for comparison.
func (st *clusterStatus) digest() string {
	summary := proto.CloneOf(st.summary)
	summary.Revision = 0
	for _, r := range summary.GetCluster().GetRegions() {
		r.Revision = 0
	}
	var out strings.Builder
	out.WriteString(fmt.Sprint(st.missing) + command.Digest(summary) + command.Digest(st.breaker))
	for _, in := range st.incidents {
		out.WriteString(command.Digest(in))
	}
	for _, r := range st.responses {
		out.WriteString(command.Digest(r))
	}
	for _, s := range st.supervisors {
		out.WriteString(command.Digest(s))
	}
	return out.String()
}

// print prints the status, and warns on standard error if it is incomplete or old.
func (st *clusterStatus) print(a *command.App, f command.Format) error {
	command.WarnCluster(a, st.summary.GetCluster())
	if !f.Structured() {
		return st.text(a)
	}
	b, err := st.json()
	if err != nil {
		return err
	}
	return a.PrintJSON(f, b)
}

// json returns the whole as one object.
func (st *clusterStatus) json() ([]byte, error) {
	var failed error
	raw := func(b []byte, err error) json.RawMessage {
		failed = errors.Join(failed, err)
		return b
	}
	out := struct {
		Time        time.Time       `json:"time"`
		Incidents   json.RawMessage `json:"incidents"`
		Responses   json.RawMessage `json:"responses"`
		Breaker     json.RawMessage `json:"breaker"`
		Supervisors json.RawMessage `json:"supervisors"`
		Nodes       json.RawMessage `json:"nodes"`
		Links       json.RawMessage `json:"links"`
		Groups      uint32          `json:"groups"`
		Warnings    uint32          `json:"warnings"`
		Maintenance uint32          `json:"maintenance"`
		Stopped     uint32          `json:"stopped"`
		LostPaths   json.RawMessage `json:"lostPaths"`
		Single      json.RawMessage `json:"singleWitness"`
		Cluster     json.RawMessage `json:"cluster"`
		Missing     []string        `json:"missing,omitempty"`
	}{
		st.at.UTC(), raw(listJSON(st.incidents)), raw(listJSON(st.responses)), raw(command.ProtoJSON(st.breaker)),
		raw(listJSON(st.supervisors)), raw(command.ProtoJSON(st.summary.GetNodes())), raw(command.ProtoJSON(st.summary.GetLinks())),
		st.summary.GetGroups(), st.summary.GetWarnings(), st.summary.GetMaintenance(), st.summary.GetStopped(),
		raw(listJSON(st.summary.GetLostPaths())), raw(listJSON(st.summary.GetSingleWitness())), raw(command.ProtoJSON(st.summary.GetCluster())),
		st.missing,
	}
	if failed != nil {
		return nil, failed
	}
	return json.Marshal(out)
}
