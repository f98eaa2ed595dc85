package main

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
)

// tokenBytes is the number of checksum bytes of the snapshot in the name of the restored cluster, so that members
// restored from different files do not mix.
const tokenBytes = 8

func restoreCommand(environ []string) *cobra.Command {
	var file, snapshot, token string
	cmd := &cobra.Command{
		Use:   "restore --snapshot FILE --config FILE",
		Short: "Make this replica's data directory from a snapshot, after all replicas' data were lost",
		Long: `Make this replica's data directory from a snapshot of 'lofamoctl supervisor snapshot', when the quorum is lost for
good. Stop all replicas, move their data directories away, run this on one replica's machine, run the printed command
on each of the others with the same file, then start them.

Every restore makes a new cluster with the snapshot's content, named by the time at which it began: running members of
the old cluster, or of another restore, cannot join it. It lacks everything acknowledged after the snapshot; the
halves restate their present states with their next digests. Revisions are computed from the time of the
restore, so they continue above all earlier ones. Watchers that saw changes after the snapshot must list again, even
if an old file is restored a second time.

It refuses a directory that has data, a damaged file, a clock that is behind the restore from which the snapshot
comes, and an external etcd (use etcdutl).`,
		Args: program.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" || snapshot == "" {
				return program.Usage(fmt.Errorf("restore: want both --snapshot and --config"))
			}
			cfg, err := load(file, environ, nil, nil)
			if err != nil {
				return program.Usage(err)
			}
			if !cfg.Embedded() {
				return program.Usage(fmt.Errorf("restore: etcd.endpoints names an etcd outside: its own etcdutl restores it"))
			}
			sum, err := embedded.SnapshotSum(snapshot)
			if err != nil {
				return fmt.Errorf("snapshot %s: %w", snapshot, err)
			}
			at, first := time.Now(), token == ""
			if first {
				token = embedded.RestoreToken(at)
			} else if at, err = embedded.ParseRestoreToken(token); err != nil {
				return program.Usage(fmt.Errorf("restore: --token: %w", err))
			}
			info, err := embedded.Restore(embedded.RestoreConfig{
				Snapshot: snapshot, DataDir: cfg.DataDir, Name: cfg.EtcdName(), PeerURL: cfg.Etcd.PeerURL,
				InitialCluster: cfg.Etcd.InitialCluster, At: at, Logger: program.NewLogger(cfg.Log, cmd.ErrOrStderr()),
				Token: cfg.EtcdToken() + "-" + token + "-" + hex.EncodeToString(sum[:tokenBytes]),
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: restored %d keys up to revision %d of %s, as a member of a new cluster %q with %s\n",
				cfg.DataDir, info.Keys, info.Revision, snapshot, token, cfg.Etcd.InitialCluster)
			if err == nil && first && strings.Contains(cfg.Etcd.InitialCluster, ",") {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "on each of the other replicas' machines, with the same file:\n"+
					"  lofamo-supervisor restore --snapshot FILE --config FILE --token %s\n", token)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "this replica's configuration file, YAML")
	cmd.Flags().StringVar(&snapshot, "snapshot", "", "the snapshot's file, the same for all replicas")
	cmd.Flags().StringVar(&token, "token", "", "token printed by the first replica's restore, for all others; without it a new restore begins")
	return cmd
}

func checkSnapshotCommand() *cobra.Command {
	var snapshot string
	cmd := &cobra.Command{
		Use:   "check --snapshot FILE",
		Short: "Check a snapshot's file without restoring it",
		Long:  "Read a snapshot's file to its end, compare its checksum, and print its contents.",
		Args:  program.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if snapshot == "" {
				return program.Usage(fmt.Errorf("check: --snapshot is missing (a configuration is checked by `lofamo-supervisor config check FILE`)"))
			}
			info, err := embedded.CheckSnapshot(snapshot, quiet())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: good: %d keys up to revision %d, %d bytes, etcd storage %s\n",
				snapshot, info.Keys, info.Revision, info.Bytes, info.Version)
			return err
		},
	}
	cmd.Flags().StringVar(&snapshot, "snapshot", "", "the snapshot's file")
	return cmd
}
