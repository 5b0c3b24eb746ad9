package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync/zktest"
)

func serverCommand() *cobra.Command {
	listen := ""
	cmd := &cobra.Command{
		Use:   "server [flags]",
		Short: "serve ZooKeeper's protocol from memory, for development",
		Long: `server serves ZooKeeper's protocol to any client, until it is interrupted.
Everything is in memory and gone afterwards: it is for development and tests.`,
		Example: "  zsync server --listen 127.0.0.1:2181",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return serve(listen, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:2181", "`ADDRESS` to listen on; port 0: any that is free")
	return cmd
}

func serve(listen string, out io.Writer) error {
	// zktest, made for tests, panics if it cannot listen.
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return fail(exitUsage, "--listen: %w", err)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fail(exitServers, "server: %w", err)
	}
	l.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	srv := zktest.NewServer(zktest.WithAddr(listen))
	fmt.Fprintf(out, "serving on %s, from memory\n", srv.Addr())
	<-stop
	return srv.Close()
}

// noArgs is cobra.NoArgs, with a message that says so.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fail(exitUsage, "want: %s", cmd.UseLine())
	}
	return nil
}
