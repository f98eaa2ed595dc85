package main

import (
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/supervisor/embedded"
)

// tokenBytes of a snapshot's checksum name the cluster that is restored from it.
const tokenBytes = 8

func restoreCommand(environ []string) *cobra.Command {
	var file, snapshot, token string
	cmd := &cobra.Command{
		Use:   "restore --snapshot FILE --config FILE",
		Short: "Make this replica's data directory from a snapshot, after all replicas' data were lost",
		Long: `Make this replica's data directory from a snapshot that lofamoctl supervisor snapshot has taken, when the
quorum is lost for good. Stop all replicas, move their data directories away, run this on every replica's machine
with the same file, then start them.

The restored replicas are a new cluster with the old one's content: members of the old one that still live
somewhere do not mix with it. What was acknowledged after the snapshot is not in it; the halves restate
what holds now with their next digests. Revisions go on a thousand million above those of the snapshot, so that
watchers are told to list again.

It refuses a directory that has data, a file that is damaged, and an outside etcd (etcdutl does that).`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" || snapshot == "" {
				return usageError{fmt.Errorf("restore: want both --snapshot and --config")}
			}
			cfg, err := load(file, environ, nil, nil)
			if err != nil {
				return usageError{err}
			}
			if !cfg.Embedded() {
				return usageError{fmt.Errorf("restore: etcd.endpoints names an etcd outside: its own etcdutl restores it")}
			}
			sum, err := embedded.SnapshotSum(snapshot)
			if err != nil {
				return fmt.Errorf("snapshot %s: %w", snapshot, err)
			}
			if token == "" {
				token = hex.EncodeToString(sum[:tokenBytes])
			}
			logger := newLogger(cfg.Log, cmd.ErrOrStderr())
			info, err := embedded.CheckSnapshot(snapshot, logger)
			if err != nil {
				return err
			}
			err = embedded.Restore(embedded.RestoreConfig{
				Snapshot: snapshot, DataDir: cfg.DataDir, Name: cfg.EtcdName(), PeerURL: cfg.Etcd.PeerURL,
				InitialCluster: cfg.Etcd.InitialCluster, Token: cfg.EtcdToken() + "-" + token, Logger: logger,
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: restored %d keys up to revision %d of %s, as a member of a new cluster %q with %s\n",
				cfg.DataDir, info.Keys, info.Revision, snapshot, token, cfg.Etcd.InitialCluster)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "this replica's configuration file, YAML")
	cmd.Flags().StringVar(&snapshot, "snapshot", "", "the snapshot's file, the same for all replicas")
	cmd.Flags().StringVar(&token, "token", "", "name of the new cluster, the same for all replicas (default from the snapshot's checksum; give another when the same file is restored again)")
	return cmd
}

func checkSnapshotCommand() *cobra.Command {
	var snapshot string
	cmd := &cobra.Command{
		Use:   "check --snapshot FILE",
		Short: "Check a snapshot's file without restoring it",
		Long:  "Read a snapshot's file to its end, compare its checksum, and print what is in it.",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if snapshot == "" {
				return usageError{fmt.Errorf("check: --snapshot is missing (a configuration is checked by `supervisor config check FILE`)")}
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
