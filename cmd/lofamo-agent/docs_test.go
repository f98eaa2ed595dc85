package main

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/testing/docstest"
)

func TestCommandsOfThePages(t *testing.T) {
	docstest.Parses(t, "../..", "lofamo-agent", func() *cobra.Command { return (&options{stderr: io.Discard}).rootCommand() })
}
