package gitserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"

	"github.com/gliderlabs/ssh"
)

// sshUser is the only account, as at the well-known Git hosts.
const sshUser = "git"

// refusedStatus is the exit status of a refused command, as git's own servers
// use it.
const refusedStatus = 128

func (s *Server) newSSH() *ssh.Server {
	server := &ssh.Server{
		Handler:     s.handleSSH,
		HostSigners: []ssh.Signer{s.host},
		IdleTimeout: idleTimeout,
		// Nothing but commands: no forwarding, no subsystem, no terminal.
		ChannelHandlers: map[string]ssh.ChannelHandler{"session": ssh.DefaultSessionHandler},
		RequestHandlers: map[string]ssh.RequestHandler{},
		PtyCallback:     func(ssh.Context, ssh.Pty) bool { return false },
		PublicKeyHandler: func(ctx ssh.Context, key ssh.PublicKey) bool {
			if ctx.User() != sshUser {
				return false
			}
			for _, accepted := range s.accepted {
				if ssh.KeysEqual(accepted, key) {
					return true
				}
			}
			return false
		},
	}
	return server
}

// serveSSH accepts connections itself, because the library neither waits for
// those it accepted nor closes one that has not logged in.
func (s *Server) serveSSH() {
	for {
		connection, err := s.shell.Accept()
		if err != nil {
			if s.ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintf(s.options.Log, "ssh: %v\n", err)
			}
			return
		}
		if !s.keep(connection) {
			_ = connection.Close()
			return
		}
		go func() {
			defer s.tasks.Done()
			defer s.forget(connection)
			s.ssh.HandleConn(connection)
		}()
	}
}

func (s *Server) keep(connection net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.shells[connection] = struct{}{}
	s.tasks.Add(1)
	return true
}

func (s *Server) forget(connection net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.shells, connection)
	_ = connection.Close()
}

func (s *Server) handleSSH(session ssh.Session) {
	if !s.enter() {
		return
	}
	defer s.tasks.Done()
	status, err := s.serveSession(session)
	if err != nil {
		fmt.Fprintf(session.Stderr(), "git server: %v\n", err)
		fmt.Fprintf(s.options.Log, "ssh: %v\n", err)
	}
	// The client may have gone; then nobody wants the status.
	_ = session.Exit(status)
}

// serveSession runs the one command of a session and returns its exit status.
func (s *Server) serveSession(session ssh.Session) (int, error) {
	service, repository, err := parseCommand(session.Command())
	if err != nil {
		return refusedStatus, err
	}
	name, folder, err := s.resolve(repository)
	if err != nil {
		return refusedStatus, fmt.Errorf("cannot serve repository %s: %w", repository, err)
	}
	s.count(name, func(t *Traffic) {
		if service == "receive-pack" {
			t.Pushes++
		} else {
			t.Sessions++
		}
	})
	args := []string{service, folder}
	if service == "upload-pack" {
		// Else it would also try the folder's parent and its .git.
		args = []string{service, "--strict", folder}
	}
	command := s.command(s.ctx, s.root, protocolOf(session), args...)
	command.Stdout, command.Stderr = session, session.Stderr()
	input, err := command.StdinPipe()
	if err != nil {
		return refusedStatus, fmt.Errorf("cannot run git %s: %w", service, err)
	}
	if err := command.Start(); err != nil {
		return refusedStatus, fmt.Errorf("cannot run git %s: %w", service, err)
	}
	// The client keeps its side open until it has our status, so the end of
	// the command must not wait for the end of the input; closing the session
	// ends the copy. A client that leaves ends the input, and so the command.
	var copying sync.WaitGroup
	copying.Go(func() {
		_, _ = io.Copy(input, session)
		_ = input.Close()
	})
	err = command.Wait()
	status := 0
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		status, err = failed.ExitCode(), nil
	case err != nil:
		status, err = refusedStatus, fmt.Errorf("cannot run git %s: %w", service, err)
	}
	if err != nil {
		fmt.Fprintf(s.options.Log, "ssh: %v\n", err)
	}
	_ = session.Exit(status)
	copying.Wait()
	return status, nil
}

// parseCommand accepts the two commands of the protocol, in both spellings.
func parseCommand(words []string) (service, repository string, err error) {
	if len(words) == 3 && words[0] == "git" {
		words = []string{"git-" + words[1], words[2]}
	}
	if len(words) == 2 {
		switch service := strings.TrimPrefix(words[0], "git-"); service {
		case "upload-pack", "receive-pack":
			return service, strings.TrimPrefix(words[1], "/"), nil
		}
	}
	return "", "", fmt.Errorf("cannot run %q: only git-upload-pack and git-receive-pack are served", strings.Join(words, " "))
}

// protocolOf passes on the protocol version that the client asks for, and no
// other variable.
func protocolOf(session ssh.Session) []string {
	for _, variable := range session.Environ() {
		if strings.HasPrefix(variable, "GIT_PROTOCOL=") {
			return []string{variable}
		}
	}
	return nil
}
