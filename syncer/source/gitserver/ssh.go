package gitserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// sshUser is the only account, as at the well-known Git hosts.
const sshUser = "git"

// refusedStatus is the exit status of a refused command, as git's own servers
// use it.
const refusedStatus = 128

// onlyRepository is the extension of a login with a deploy key: the repository that it
// opens.
const onlyRepository = "repository"

// onlyReading is that of a login with a key that writes nothing.
const onlyReading = "reading"

func (s *Server) newSSH() *ssh.ServerConfig {
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(connection ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			for _, accepted := range s.accepted {
				if connection.User() == sshUser && bytes.Equal(accepted.Marshal(), key.Marshal()) {
					return nil, nil
				}
			}
			if only, ok := s.opens(key); ok && connection.User() == sshUser {
				may := map[string]string{onlyRepository: only}
				if s.onlyReads(key) {
					may[onlyReading] = only
				}
				return &ssh.Permissions{Extensions: may}, nil
			}
			return nil, fmt.Errorf("cannot log in as %s: the key is not accepted", connection.User())
		},
	}
	config.AddHostKey(s.host)
	return config
}

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
			s.handleConnection(&idleConn{Conn: connection})
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

// idleConn ends a connection whose client hangs.
type idleConn struct{ net.Conn }

func (c *idleConn) Read(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(idleTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *idleConn) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(idleTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// handleConnection logs a client in and serves its sessions until it goes. There is
// nothing but sessions: no forwarding.
func (s *Server) handleConnection(connection net.Conn) {
	client, channels, requests, err := ssh.NewServerConn(connection, s.ssh)
	if err != nil {
		return // who is not let in has been told why
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer client.Close()
	serving.Go(func() { ssh.DiscardRequests(requests) })
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "only sessions are served")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			continue
		}
		begun := &session{Channel: channel}
		if client.Permissions != nil {
			begun.only, begun.reads = client.Permissions.Extensions[onlyRepository], client.Permissions.Extensions[onlyReading] != ""
		}
		serving.Go(func() { s.handleSession(begun, requests) })
	}
}

// session is one channel of a client, which runs one command.
type session struct {
	ssh.Channel
	protocol []string
	// only is the repository that the key opens, empty for a key that opens all; reads: the
	// key writes nothing.
	only  string
	reads bool
}

// handleSession accepts variables and one command: no subsystem, no terminal.
func (s *Server) handleSession(session *session, requests <-chan *ssh.Request) {
	var running sync.WaitGroup
	defer running.Wait()
	handled := false
	for request := range requests {
		accepted := false
		switch request.Type {
		case "env":
			var variable struct{ Name, Value string }
			// The protocol version that the client asks for is passed on, and no other
			// variable.
			if err := ssh.Unmarshal(request.Payload, &variable); err == nil && variable.Name == "GIT_PROTOCOL" {
				session.protocol = []string{"GIT_PROTOCOL=" + variable.Value}
			}
			accepted = true
		case "exec":
			var command struct{ Line string }
			if err := ssh.Unmarshal(request.Payload, &command); err != nil || handled || !s.enter() {
				break
			}
			handled, accepted = true, true
			running.Go(func() {
				defer s.tasks.Done()
				s.handleCommand(session, command.Line)
			})
		}
		// A client that has gone does not receive it.
		_ = request.Reply(accepted, nil)
	}
}

func (s *Server) handleCommand(session *session, line string) {
	status, err := s.serveCommand(session, line)
	if err != nil {
		fmt.Fprintf(session.Stderr(), "git server: %v\n", err)
		fmt.Fprintf(s.options.Log, "ssh: %v\n", err)
	}
	session.exit(status)
}

// exit tells the client the status of its command, and closes the channel. The
// client may have gone; then nobody wants the status.
func (s *session) exit(status int) {
	_, _ = s.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)}))
	_ = s.Close()
}

// serveCommand runs the one command of a session and returns its exit status.
func (s *Server) serveCommand(session *session, line string) (int, error) {
	service, repository, err := parseCommand(splitWords(line))
	if err != nil {
		return refusedStatus, err
	}
	name, folder, err := s.resolve(repository)
	if err != nil {
		return refusedStatus, fmt.Errorf("cannot serve repository %s: %w", repository, err)
	}
	if session.only != "" && session.only != name {
		return refusedStatus, fmt.Errorf("cannot serve repository %s: the key opens another one", repository)
	}
	if session.reads && service == "receive-pack" {
		return refusedStatus, fmt.Errorf("cannot serve repository %s: the key only reads", repository)
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
	command := s.command(s.ctx, s.root, session.protocol, args...)
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
	session.exit(status)
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

// splitWords splits a command line as a shell does that knows nothing but quotes and
// backslashes. Clients quote the name of the repository.
func splitWords(line string) []string {
	var words []string
	var word strings.Builder
	inWord, quote, escaped := false, rune(0), false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			inWord, escaped = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			inWord, quote = true, r
		case quote == 0 && (r == ' ' || r == '\t' || r == '\n'):
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			inWord = true
			word.WriteRune(r)
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}
