-- The show as PostgreSQL runs it: one function call is one vote, so one vote is one round trip and, by
-- itself, one transaction. Rows that change with every vote have room to change in place.

create table candidates (candidate int primary key, votes int not null, recent int not null)
  with (fillfactor = 20);
create table votes (phone int primary key, candidate int not null);
create index votes_by_candidate on votes (candidate);
create table tally (id int primary key, accepted int not null) with (fillfactor = 10);
create table recent (place int primary key, candidate int not null) with (fillfactor = 50);
create table boards (
  board int primary key,
  first int not null default 0, first_votes int not null default 0,
  second int not null default 0, second_votes int not null default 0,
  third int not null default 0, third_votes int not null default 0
) with (fillfactor = 10);
create table removed (candidate int primary key, votes int not null, accepted int not null);

insert into candidates select c, 0, 0 from generate_series(1, $CANDIDATES) c;
insert into tally values (0, 0);
insert into boards (board) values (0), (1), (2);
analyze;

create function write_boards() returns void language plpgsql as $$
begin
  update boards b
  set first = coalesce(n.c[1], 0), first_votes = coalesce(n.v[1], 0),
      second = coalesce(n.c[2], 0), second_votes = coalesce(n.v[2], 0),
      third = coalesce(n.c[3], 0), third_votes = coalesce(n.v[3], 0)
  from (
    select 0 as board, array_agg(candidate) as c, array_agg(votes) as v
    from (select candidate, votes from candidates order by votes desc, candidate limit 3) most
    union all
    select 1, array_agg(candidate), array_agg(votes)
    from (select candidate, votes from candidates order by votes, candidate limit 3) fewest
    union all
    select 2, array_agg(candidate), array_agg(recent)
    from (select candidate, recent from candidates order by recent desc, candidate limit 3) trend
  ) n
  where b.board = n.board
    and (b.first, b.first_votes, b.second, b.second_votes, b.third, b.third_votes)
        is distinct from (coalesce(n.c[1], 0), coalesce(n.v[1], 0), coalesce(n.c[2], 0),
                          coalesce(n.v[2], 0), coalesce(n.c[3], 0), coalesce(n.v[3], 0));
end $$;

-- 0 when the vote is accepted, 1 when it is for nobody who is running, 2 when its phone has voted.
create function vote(p int, c int) returns int language plpgsql as $$
declare
  n int;
  leaves int;
  gone int;
  had int;
begin
  insert into votes select p, c where exists (select from candidates where candidate = c)
    on conflict (phone) do nothing;
  if not found then
    return case when exists (select from candidates where candidate = c) then 2 else 1 end;
  end if;
  update tally set accepted = accepted + 1 where id = 0 returning accepted into n;
  select candidate into leaves from recent where place = (n - 1) % 100;
  if leaves is null then
    insert into recent values ((n - 1) % 100, c);
    leaves := 0;
  elsif leaves <> c then
    update recent set candidate = c where place = (n - 1) % 100;
  end if;
  update candidates
  set votes = votes + (candidate = c)::int,
      recent = recent + (candidate = c)::int - (candidate = leaves)::int
  where candidate in (c, leaves);
  perform write_boards();
  if n % $EVERY = 0 and (select count(*) from candidates) > 1 then
    select candidate, votes into gone, had from candidates order by votes, candidate limit 1;
    delete from votes where candidate = gone;
    delete from candidates where candidate = gone;
    insert into removed values (gone, had, n);
    perform write_boards();
  end if;
  return 0;
end $$;
