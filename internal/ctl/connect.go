package ctl

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
)

// clusterDir returns the directory of the local cluster and where the choice came from.
func (a *app) clusterDir() (dir, from string) {
	if a.dir != "" {
		return a.dir, "--dir"
	}
	if env := a.env.Getenv(cluster.EnvDir); env != "" {
		return env, "$" + cluster.EnvDir
	}
	return cluster.DefaultDir, "the default"
}

// local finds the local cluster, for commands that work on nothing else.
func (a *app) local(what string) (*cluster.Cluster, error) {
	if a.server != "" {
		return nil, usagef("%s works only on a local cluster made by `lofamoctl up`: --server names another one", what)
	}
	dir, from := a.clusterDir()
	c, err := cluster.Load(dir)
	if errors.Is(err, cluster.ErrNoCluster) {
		if abs, absErr := filepath.Abs(dir); absErr == nil {
			dir = abs
		}
		return nil, fmt.Errorf("no local cluster in %s (%s): `lofamoctl up` makes one, --dir names another directory, --server a cluster elsewhere", dir, from)
	}
	return c, err
}

// session is a connection and what is known of its other end.
type session struct {
	*client.Client
	cluster *cluster.Cluster // nil for a cluster elsewhere
}

// explain adds what helps to an error of a call.
func (s session) explain(err error) error {
	var none *client.NoAnswerError
	if errors.As(err, &none) && s.cluster != nil && len(s.cluster.Running()) == 0 {
		return fmt.Errorf("the cluster in %s is stopped: `lofamoctl up --dir %s` starts it", s.cluster.Dir(), s.cluster.Dir())
	}
	return err
}

// connect finds the supervisors: those of --server, else those of the local cluster.
func (a *app) connect() (session, error) { return a.connectAs(pki.RoleViewer) }

// connectAs is connect; in a local cluster it takes the certificate of that role.
func (a *app) connectAs(role pki.Role) (session, error) {
	if a.server == "" {
		if a.ca != "" || a.cert != "" || a.key != "" {
			return session{}, usagef("--ca, --cert and --key go with --server, which is missing")
		}
		c, err := a.local("this command")
		if err != nil {
			return session{}, err
		}
		cl, err := c.RegionClient(role, a.region)
		return session{cl, c}, err
	}
	if a.dir != "" {
		return session{}, usagef("--dir and --server name two clusters: want one of them")
	}
	if a.region != "" {
		return session{}, usagef("--region names a region of a local cluster: --server names its supervisors already")
	}
	var missing []string
	for _, f := range []struct{ name, value string }{{"--ca", a.ca}, {"--cert", a.cert}, {"--key", a.key}} {
		if f.value == "" {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		return session{}, usagef("--server also wants %s", strings.Join(missing, ", "))
	}
	tls, err := pki.ClientTLS(a.cert, a.key, a.ca, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return session{}, usageError{fmt.Errorf("--ca, --cert, --key: %w", err)}
	}
	cl, err := client.New(client.Config{Targets: splitList(a.server), TLS: tls})
	if err != nil {
		return session{}, usageError{fmt.Errorf("--server: %w", err)}
	}
	return session{cl, nil}, nil
}

func splitList(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// withClient runs a command that asks the supervisors.
func (a *app) withClient(ctx context.Context, do func(context.Context, session) error) error {
	s, err := a.connect()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	return s.explain(do(ctx, s))
}

// completeNodes completes the names of nodes: from the local cluster's file, or by asking.
func (a *app) completeNodes(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if a.server == "" {
		if c, err := a.local("completion"); err == nil {
			for _, n := range c.Info().All() {
				names = append(names, string(n.ID))
			}
		}
	} else if s, err := a.connect(); err == nil {
		defer func() { _ = s.Close() }()
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		if resp, err := s.ListNodes(ctx, &lofamov1.ListNodesRequest{}); err == nil {
			for _, n := range resp.GetNodes() {
				names = append(names, n.GetId())
			}
		}
	}
	var out []string
	for _, n := range names {
		if strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeFirstNode completes a node as the first argument only.
func (a *app) completeFirstNode(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeNodes(cmd, args, prefix)
}

// plain leaves out gRPC's own words around what a supervisor said.
func plain(err error) error {
	st, ok := status.FromError(err)
	if !ok || st.Code() == codes.OK || st.Code() == codes.Unknown {
		return err
	}
	if st.Code() == codes.InvalidArgument || st.Code() == codes.NotFound {
		return usageError{statusError{st.Message(), err}} // it names what cannot be, or is not there
	}
	return statusError{st.Message(), err}
}

// statusError is a supervisor's refusal in its own words.
type statusError struct {
	message string
	cause   error
}

func (e statusError) Error() string { return e.message }

// Unwrap keeps the code to be found.
func (e statusError) Unwrap() error { return e.cause }
