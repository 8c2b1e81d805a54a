"""How often the window draws: by what drawing takes, and what the engine has to spare."""

import pytest

from app.frame_pace import FRAME_MS, MAX_SHARE, PANELS_SHARE, SLOWEST_FRAME_MS, SLOWEST_PANELS_MS, TEXT_SHARE, FramePace

TEXT_S, ALL_S = 0.001, 0.006


class Window:
    """Draws frames that take processor time, on a clock that stands still but for waits."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0
        self.pace = FramePace(lambda: self.now, lambda: self.worked)
        self.drawn: list[tuple[float, bool]] = []

    def run(self, seconds: float, *, is_contended: bool) -> None:
        end = self.now + seconds
        while self.now < end:
            draws_all = self.pace.frame(is_contended=is_contended)
            self.drawn.append((self.now, draws_all))
            self.worked += ALL_S if draws_all else TEXT_S
            self.now += self.pace.interval_ms / 1e3

    def num_drawn(self, *, all_of_it: bool) -> int:
        return sum(draws_all is all_of_it for _, draws_all in self.drawn)


@pytest.fixture
def screen():
    return Window()


def test_with_processors_to_spare_every_frame_draws_all_within_its_share(screen):
    screen.run(10.0, is_contended=False)
    assert screen.num_drawn(all_of_it=False) == 0
    assert screen.worked <= 1.02 * 10.0 * MAX_SHARE
    assert screen.num_drawn(all_of_it=True) > 0.9 * 10.0 / (FRAME_MS + 40 * ALL_S)


def test_where_the_engine_needs_all_processors_the_text_comes_often_and_the_rest_rarely(screen):
    screen.run(60.0, is_contended=True)
    texts, alls = screen.num_drawn(all_of_it=False), screen.num_drawn(all_of_it=True)
    assert alls == pytest.approx(60.0 * PANELS_SHARE / ALL_S, rel=0.25)
    assert texts > 3 * alls
    assert screen.worked <= 1.1 * 60.0 * (TEXT_SHARE + PANELS_SHARE)


def test_what_is_dear_to_draw_is_still_drawn_now_and_then(screen, monkeypatch):
    monkeypatch.setattr("tests.test_app_frame_pace.TEXT_S", 1.0)
    monkeypatch.setattr("tests.test_app_frame_pace.ALL_S", 9.0)
    screen.run(30.0, is_contended=True)
    waits = [later - earlier for (earlier, _), (later, _) in zip(screen.drawn, screen.drawn[1:], strict=False)]
    assert max(waits) <= SLOWEST_FRAME_MS / 1e3 + 1e-9
    assert screen.num_drawn(all_of_it=True) >= 30_000 // (SLOWEST_PANELS_MS + SLOWEST_FRAME_MS)


def test_until_a_run_has_its_processors_all_is_drawn_in_every_frame(screen):
    screen.run(5.0, is_contended=True)
    screen.pace.begin()
    screen.drawn.clear()
    screen.run(0.01, is_contended=False)
    assert screen.drawn[0][1]
    assert screen.pace.interval_ms == FRAME_MS


def test_the_first_steps_on_all_processors_are_not_drawn_over_again(screen):
    screen.run(0.2, is_contended=False)
    screen.drawn.clear()
    screen.run(SLOWEST_PANELS_MS / 1e3, is_contended=True)
    assert screen.num_drawn(all_of_it=True) == 0
    screen.run(SLOWEST_FRAME_MS / 1e3 + 0.01, is_contended=True)
    assert screen.num_drawn(all_of_it=True) == 1


def test_a_frame_that_could_not_draw_all_is_followed_by_others_at_once(screen):
    screen.run((SLOWEST_PANELS_MS + SLOWEST_FRAME_MS) / 1e3, is_contended=True)
    while not screen.pace.frame(is_contended=True):
        screen.now += screen.pace.interval_ms / 1e3
    for _ in range(2):
        screen.pace.go_on()
        assert screen.pace.interval_ms == FRAME_MS
        screen.worked += ALL_S
        assert screen.pace.frame(is_contended=True)
    screen.worked += ALL_S
    assert not screen.pace.frame(is_contended=True)


def test_after_a_run_was_held_its_next_frames_are_the_texts(screen):
    screen.run(3.0, is_contended=True)
    screen.run(1.0, is_contended=False)
    screen.drawn.clear()
    screen.run(SLOWEST_PANELS_MS / 1e3, is_contended=True)
    assert screen.num_drawn(all_of_it=True) == 0


def test_what_clearing_the_window_takes_does_not_put_off_the_first_frames(screen):
    screen.pace.begin()
    screen.worked += 0.1
    screen.run(0.01, is_contended=False)
    assert screen.pace.interval_ms == FRAME_MS
